# shellcheck shell=bash disable=SC2034 # what is set here is for the scripts that source it
# Sourced by every script: where the sources are, and where builds and tools are kept. Nothing is
# written into the sources, so a fresh clone finds the engine built.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/creel
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
binaries=$CARGO_TARGET_DIR/debug
venv=$cache/venv

# say MESSAGE…: to standard error, under the script's name.
say() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# die STATUS MESSAGE…
die() {
  local status=$1
  shift
  say "$@"
  exit "$status"
}

# manual: the comment at the head of the script.
manual() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

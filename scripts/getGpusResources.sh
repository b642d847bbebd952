#!/bin/sh
# Tells Spark which GPUs an executor or driver has:
#   --conf spark.executor.resource.gpu.discoveryScript=/usr/libexec/creel/getGpusResources.sh
# or, shipped with the job: --files getGpusResources.sh and discoveryScript=./getGpusResources.sh
#
# Prints one line, {"name": "gpu", "addresses":["0","1"]}; with the argument --address uuid, or with
# CREEL_ADDRESS=uuid (spark.executorEnv.CREEL_ADDRESS: Spark gives the script no arguments), UUIDs as
# CUDA_VISIBLE_DEVICES takes them. Other arguments go to creel-discovery as well. Needs creel-discovery on the node: at
# $CREEL_DISCOVERY, on the PATH, beside this script, or where the package puts it.
set -eu

fail() {
	echo "getGpusResources.sh: $1" >&2
	exit 1
}

if [ -n "${CREEL_DISCOVERY:-}" ]; then
	[ -x "$CREEL_DISCOVERY" ] || fail "CREEL_DISCOVERY=$CREEL_DISCOVERY is not a program"
	exec "$CREEL_DISCOVERY" --format spark "$@"
fi

# One on the PATH first; `command -v` prints nothing where there is none.
for program in \
	"$(command -v creel-discovery || true)" \
	"${0%/*}/creel-discovery" \
	/usr/bin/creel-discovery \
	/usr/libexec/creel/creel-discovery \
	/usr/local/bin/creel-discovery \
	/opt/creel/bin/creel-discovery; do
	if [ -f "$program" ] && [ -x "$program" ]; then
		exec "$program" --format spark "$@"
	fi
done

fail "creel-discovery is not on this node ($(uname -n)): install the package creel, or set CREEL_DISCOVERY to where it is (spark.executorEnv.CREEL_DISCOVERY)"

"""Starts daemons on request, and ends them with all that they started when its standard input ends.

Nothing of a cluster is left however its owner ends, by SIGKILL too: the owner holds the other end
of standard input. A container lives in a session of its own and outlives a NodeManager that is
killed; as their "subreaper" (prctl(2)) this process becomes the parent of such orphans, so they are
found.

    keeper.py DIRECTORY    removes DIRECTORY in the end, and what `sweep` named

One JSON object a line, in and out:

    {"start": [PROGRAM, …], "environment": {…}, "log": PATH}   ->  {"pid": N}
    {"sweep": "/sys/fs/cgroup/…"}: rmdir of it and what is below  ->  {}
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def children() -> dict[int, list[int]]:
    """The processes of the machine, by their parent."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        found.setdefault(parent, []).append(int(stat.parent.name))
    return found


def descendants() -> set[int]:
    tree, found, todo = children(), set(), [os.getpid()]
    while todo:
        below = tree.get(todo.pop(), [])
        found.update(below)
        todo += below
    return found


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def start(request: dict) -> int:
    with open(request["log"], "ab") as log:
        return subprocess.Popen(
            request["start"],
            env=request["environment"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ).pid


def serve() -> list[Path]:
    """Does what is asked until nobody can ask any more; gives what is to be swept."""
    swept = []
    while True:
        reap()
        # Orphans end without a word.
        if not select.select([sys.stdin.buffer.raw], [], [], 0.5)[0]:
            continue
        line = sys.stdin.buffer.raw.readline()
        if not line:
            return swept
        request, answer = json.loads(line), {}
        if "start" in request:
            answer["pid"] = start(request)
        else:
            swept.append(Path(request["sweep"]))
        print(json.dumps(answer), flush=True)


def end(directory: Path, swept: list[Path]) -> None:
    while left := descendants():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        time.sleep(0.02)
    for top in swept:
        # Cgroups: directories whose files can't be removed and don't matter.
        for path in sorted([*top.glob("**/"), top], reverse=True):
            try:
                path.rmdir()
            except OSError:
                pass
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        swept = serve()
    except BaseException:
        end(Path(sys.argv[1]), [])
        raise
    end(Path(sys.argv[1]), swept)

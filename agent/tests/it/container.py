"""What runs in a container of `node_manager.rs`: does what files in its directory say, until it is killed.

`NAME.do` holds a JSON object, and its answer goes to `NAME.done`:
{"request": TEXT, "environment": {…}}  sends TEXT to the agent, from a process of its own; "detached":
                                       from one in a session of its own that no ancestor ties to here
{"leave": SECONDS}                     leaves a process behind, in the same session; answers its pid
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

socket, directory = sys.argv[1], Path(sys.argv[2])
peer = str(Path(__file__).with_name("peer.py"))


def request(command: dict) -> bytes:
    arguments = [sys.executable, peer, str(os.getuid()), socket, "request"]
    environment = os.environ | command.get("environment", {})
    if command.get("detached"):
        # The process in between ends before it asks.
        script = 'sleep 0.1; exec "$@"'
        arguments = ["setsid", "--fork", "sh", "-c", script, "sh", *arguments]
    asked = subprocess.run(
        arguments, input=command["request"].encode(), env=environment, stdout=subprocess.PIPE
    )
    return asked.stdout


while True:
    for path in directory.glob("*.do"):
        command = json.loads(path.read_text())
        path.unlink()
        if "leave" in command:
            answer = str(subprocess.Popen(["sleep", str(command["leave"])]).pid).encode()
        else:
            answer = request(command)
        partial = path.with_suffix(".partial")
        partial.write_bytes(answer)
        partial.rename(path.with_suffix(".done"))
    time.sleep(0.01)

"""A client that is another process, and perhaps another user: peer.py UID SOCKET ACTION.

request: sends standard input, prints the answer. hold: stays connected. fork: so does its child.
"""

import os
import socket
import sys
import time

uid, path, action = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if uid != os.getuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
connection = socket.socket(socket.AF_UNIX)
connection.connect(path)
if action == "request":
    connection.sendall(sys.stdin.buffer.read())
    while data := connection.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
else:
    greeting = connection.recv(100).decode()
    if action == "fork" and os.fork() == 0:
        while connection.recv(100):
            pass
        print("the child sees the end", flush=True)
    else:
        print(greeting, end="", flush=True)
        time.sleep(600)

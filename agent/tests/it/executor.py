"""Stands in for creel-executor: speaks creel-wire's protocol on standard input, runs no queries.

A client of it sends lines, no gRPC: `whoami`, `around` (what it was told of GPUs), `query ID`, `die`
(SIGKILL), `fail` (exit code 3), `lose` (its GPU).
The environment variable MODE makes it misbehave.
"""

import json
import os
import selectors
import signal
import socket
import struct
import sys
import time

MODE = os.environ.get("MODE", "")
agent = socket.socket(fileno=os.dup(0))


def become(arguments):
    given = dict(zip(arguments[::2], arguments[1::2]))
    if "--uid" in given:
        groups = given.get("--groups", "")
        os.setgroups([int(group) for group in groups.split(",") if group])
        os.setresgid(*[int(given["--gid"])] * 3)
        os.setresuid(*[int(given["--uid"])] * 3)


def send(message):
    text = json.dumps(message).encode()
    agent.sendall(struct.pack("<I", len(text)) + text)


def gpu():
    account = {"limit": 900, "used": 30, "peak": 40}
    return {
        "pool": {
            **{"kind": "ARENA", "limit": 1000, "taken": 700, "live": 20, "peak": 50},
            **{"largest_free": 600, "allocations": 9, "failures": 0},
        },
        "ledger": {
            **{"device": account, "pinned": account, "host": account, "waiting": 0},
            **{"waits": 1, "retries": 2, "splits": 3, "refusals": 0},
        },
        "semaphore": {"tasks": 2, "holding": 1, "waiting": 0},
        "spill": dict.fromkeys(["batches", "host", "disk", "to_host", "to_disk", "failures"], 0),
    }


class Executor:
    def __init__(self):
        self.device, self.attachments, self.queries = "cpu", {}, {}
        self.buffer, self.descriptors = b"", []
        self.selector = selectors.DefaultSelector()
        self.selector.register(agent, selectors.EVENT_READ, None)

    def run(self):
        while True:
            for key, _ in self.selector.select():
                self.client(key.data) if key.data else self.agent()

    def agent(self):
        data, descriptors, _, _ = socket.recv_fds(agent, 65536, 16)
        if not data:
            sys.exit(0)
        self.buffer += data
        self.descriptors += descriptors
        while len(self.buffer) >= 4:
            (length,) = struct.unpack("<I", self.buffer[:4])
            if len(self.buffer) < 4 + length:
                return
            message = json.loads(self.buffer[4 : 4 + length])
            self.buffer = self.buffer[4 + length :]
            getattr(self, message.pop("type"))(**message)

    def start(self, id, device, spill_dir, settings, gpus, holders):
        self.device, self.around = device, {"gpus": gpus, "holders": holders}
        print("an allocation", flush=True)
        if MODE == "silent":
            return
        if MODE == "broken":
            print("first words", file=sys.stderr)
            print("no luck today", file=sys.stderr)
            sys.exit(3)
        if MODE == "refuses":
            send({"type": "failed", "reason": "it is not in the mood"})
            sys.exit(1)
        open(os.path.join(spill_dir, "spilled"), "w").close()
        send({"type": "ready", "version": "0.1.0"})

    def attach(self, attachment, pid, uid, cwd, container):
        connection = socket.socket(fileno=self.descriptors.pop(0))
        if MODE == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        connection.setblocking(True)
        self.attachments[attachment] = connection
        self.selector.register(connection, selectors.EVENT_READ, attachment)
        try:
            connection.sendall(b"hello\n")
        except OSError:
            self.detach(attachment)

    def client(self, attachment):
        try:
            self.obey(attachment, self.attachments[attachment])
        except OSError:
            self.detach(attachment)

    def obey(self, attachment, connection):
        for line in connection.recv(65536).decode(errors="replace").splitlines() or [None]:
            match (line or "end").split():
                case ["end"]:
                    return self.detach(attachment)
                case ["whoami"]:
                    who = [os.getresuid(), os.getresgid(), sorted(os.getgroups())]
                    connection.sendall(json.dumps(who).encode() + b"\n")
                case ["around"]:
                    connection.sendall(json.dumps(self.around).encode() + b"\n")
                case ["query", id]:
                    self.queries[id] = attachment
                    connection.sendall(b"runs\n")
                case ["die"]:
                    os.kill(os.getpid(), signal.SIGKILL)
                case ["lose"]:
                    send({"type": "gpu_failed", "reason": "CUDA_ERROR_ILLEGAL_ADDRESS"})
                    connection.sendall(b"lost\n")
                    if MODE != "stubborn":
                        os._exit(1)
                case ["fail"]:
                    print("the last straw", file=sys.stderr)
                    os._exit(3)

    def said(self, attachment):
        return {"attachment": attachment, "queries": 1, "bytes_sent": 7}

    def detach(self, attachment):
        if connection := self.attachments.pop(attachment, None):
            self.selector.unregister(connection)
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
            send({"type": "closed", "attachment": self.said(attachment)})

    def cancel(self, token, query, reason):
        found = self.queries.pop(query, None) is not None
        send({"type": "cancelled", "token": token, "found": found})

    def report(self, token):
        memory = {"limit": 100, "reserved": 10, "spilled": 0, "spill_limit": 1000}
        numbers = dict.fromkeys(
            ["elapsed_ms", "rows_scanned", "bytes_scanned", "rows_sent", "bytes_sent"], 0
        )
        queries = [
            {"id": id, "attachment": attachment, "sql": "SELECT 1", **numbers}
            for id, attachment in self.queries.items()
        ]
        attachments = [self.said(attachment) for attachment in self.attachments]
        report = {"memory": memory, "attachments": attachments, "queries": queries}
        if self.device != "cpu":
            report["gpu"] = gpu()
        send({"type": "report", "token": token, "report": report})

    def drain(self, reason, deadline_ms):
        if MODE == "stubborn":
            return
        for connection in self.attachments.values():
            connection.sendall(f"drained: {reason}\n".encode())
        time.sleep(0.1)
        sys.exit(0)


become(sys.argv[1:])
Executor().run()

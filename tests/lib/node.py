"""A private node: `creeld` in a directory of its own, as `scripts/run` has it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

TARGET = os.environ.get("CARGO_TARGET_DIR") or (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "creel" / "target"
)
BINARIES = Path(TARGET) / "debug"


class Node:
    """A node, started and ended as a context, or by `start` and `end`."""

    def __init__(self, *settings: str, gpus=(), uid: int | None = None):
        """With settings as `NAME=VALUE`, simulated GPUs, and another user than this process's."""
        # Short, for a socket's path has 108 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="creel-e2e-", dir="/tmp"))
        # Executors run as the users that they serve.
        self.directory.chmod(0o755)
        self.run_dir = self.directory / "run"
        self.socket = self.run_dir / "creel.sock"
        self.agent_socket = self.run_dir / "agent.sock"
        self.settings = [
            "gpu.unleased=allow",
            f"executor.spill_dir={self.directory / 'spill'}",
            "executor.memory=1 GiB",
            *settings,
        ]
        self.environment = os.environ | {
            "PATH": f"{BINARIES}:{os.environ['PATH']}",
            "CREEL_RUN_DIR": str(self.run_dir),
            "CREEL_AGENT_STATE_DIR": str(self.directory / "state"),
        }
        self.binaries = BINARIES
        self.uid = uid
        if uid is not None:
            # The build may lie where only its owner may look.
            self.binaries = self.directory / "bin"
            self.binaries.mkdir()
            for name in ("creel", "creeld", "creel-executor"):
                self.copy_binary(name)
            os.chown(self.directory, uid, uid)
        if gpus:
            prepare = [BINARIES / "simulated-gpu", "prepare", "--dir", self.directory / "gpu"]
            for spec in gpus:
                prepare += ["--gpus", spec]
            subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
            self.environment["LD_LIBRARY_PATH"] = str(self.directory / "gpu" / "lib")
        # What the agent is started by: a program that becomes it.
        self.prefix = []
        self.process = None
        # Every process that the node was seen to have.
        self.seen = set()

    def copy_binary(self, name: str) -> Path:
        """A binary where every user may run it."""
        target = self.directory / "bin" / name
        target.parent.mkdir(exist_ok=True)
        try:
            os.link(BINARIES / name, target)
        except OSError:
            shutil.copy(BINARIES / name, target)
        return target

    def start(self, wait: bool = True) -> "Node":
        """Starts the agent, and waits until it is ready."""
        flags = [flag for setting in self.settings for flag in ("--set", setting)]
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                # However this process ends, no agent outlives it.
                ["setpriv", "--pdeathsig", "TERM", *self.prefix, self.binaries / "creeld", *flags],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.uid,
                group=self.uid,
                extra_groups=None if self.uid is None else [],
                start_new_session=True,
            )
        if wait:
            eventually(self.is_ready, 15, lambda: f"the node is not ready:\n{self.log()}")
        return self

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"creeld ended:\n{self.log()}"
        return self.creel("status", check=False).returncode == 0

    def creel(self, *arguments, check=True, **options) -> subprocess.CompletedProcess:
        """Runs `creel`; with `check`, it must succeed."""
        done = subprocess.run(
            [self.binaries / "creel", *arguments],
            env=options.pop("env", self.environment),
            stdin=options.pop("stdin", None if "input" in options else subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=options.pop("text", True),
            timeout=options.pop("timeout", 60),
            **options,
        )
        if check:
            assert done.returncode == 0, f"creel {arguments} ended with {done}\n{self.log()}"
        return done

    def json(self, *arguments):
        """The JSON answer of `creel`."""
        return json.loads(self.creel("--json", *arguments).stdout)

    def sql(self, statement: str, *arguments, **options) -> str:
        """The CSV answer to a statement."""
        return self.creel("sql", "-c", statement, "--format", "csv", *arguments, **options).stdout

    def fault(self, *arguments: str) -> None:
        """Lets something be wrong with the simulated GPUs from now on, or with `--clear` no more."""
        command = [BINARIES / "simulated-gpu", "fault", "--dir", self.directory / "gpu", *arguments]
        subprocess.run(command, check=True)

    def use(self, *arguments: str) -> None:
        """Sets the memory in use on a simulated GPU."""
        command = [BINARIES / "simulated-gpu", "use", "--dir", self.directory / "gpu", *arguments]
        subprocess.run(command, check=True)

    def cuda_calls(self, name: str = "") -> list[dict]:
        """The calls into the simulated CUDA driver so far, or those of one function."""
        lines = (self.directory / "gpu" / "cuda.log").read_text().splitlines()
        return [call for call in map(json.loads, lines) if name in ("", call["call"])]

    def executors(self) -> list[dict]:
        return self.json("executors")["executors"]

    def executor(self) -> dict:
        """The one executor."""
        (executor,) = self.executors()
        return executor

    def queries(self) -> list[dict]:
        return self.json("queries")["queries"]

    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def processes(self) -> set[int]:
        """The agent and what it started."""
        children = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(stat.parent.name))
        found, todo = set(), [self.process.pid]
        while todo:
            pid = todo.pop()
            found.add(pid)
            todo += children.get(pid, [])
        self.seen |= found
        return found

    def kill(self) -> None:
        """`kill -9` of the agent."""
        self.processes()
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ends the node as `systemctl stop` does. No process of it may be left."""
        if self.process is None:
            return
        try:
            if self.process.poll() is None:
                self.processes()
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(10)
                except subprocess.TimeoutExpired:
                    # A second one ends it without waiting for queries.
                    self.process.send_signal(signal.SIGTERM)
                    self.process.wait(10)
            eventually(
                lambda: not any(map(is_alive, self.seen)),
                5,
                lambda: f"left over: {[pid for pid in self.seen if is_alive(pid)]}\n{self.log()}",
            )
        finally:
            self.process.kill()
            for pid in filter(is_alive, self.seen - {self.process.pid}):
                os.kill(pid, signal.SIGKILL)
            self.process = None
            shutil.rmtree(self.directory)

    def __enter__(self) -> "Node":
        return self.start()

    def __exit__(self, *_) -> None:
        self.end()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(condition, seconds: float, message=lambda: "it did not come to that"):
    """Waits until the condition holds and gives its value; an assertion if it takes longer."""
    end = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < end, message()
        time.sleep(0.02)

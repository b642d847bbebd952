"""A real YARN on this machine's loopback: one ResourceManager, one NodeManager, from the jars that
`scripts/setup` fetched.

```
keeper.py ─┬─ ResourceManager                      all of them end with the keeper, and the keeper
           └─ NodeManager ── container ── …        ends with the process that holds its pipe
```

All is in one directory, `/tmp/creel-yarn-*`, which every container's user may read:

| path | what |
|---|---|
| `conf/` | `HADOOP_CONF_DIR` of everything; a copy of one below `conf/` here, and what it includes: `bed-*-site.xml` with ports, directories and the properties of the test |
| `bin/` | Creel's programs, on the PATH of containers |
| `smi/` | Creel's nvidia-smi, whom the NodeManager asks unless a test names another directory |
| `log/` | a log for each start of a daemon |
| `local/`, `containers/` | the NodeManager's local directories, and the containers' logs |
| `container-executor/` | with `executor="lce"`: the stand-in and its record, `gpu-calls` |
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

from node import BINARIES, Node, eventually, is_alive

HERE = Path(__file__).resolve().parent
JARS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "creel" / "yarn"

CGROUPS = Path("/sys/fs/cgroup")

# What a private node needs, and one that is installed has in its usual places.
OF_NODE = ("CREEL_RUN_DIR", "CREEL_AGENT_STATE_DIR", "LD_LIBRARY_PATH")

JAVA = [
    "java",
    # cglib of Hadoop 3.3 and 3.4 defines classes by reflection.
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Xmx256m",
]


class Daemon:
    """A ResourceManager or a NodeManager, which a test may start and end as often as it likes."""

    def __init__(self, cluster: "Cluster", name: str, main: str):
        self.cluster, self.name, self.main = cluster, name, main
        self.pid = None
        self.starts = 0

    @property
    def log_path(self) -> Path:
        return self.cluster.directory / "log" / f"{self.name}-{self.starts}.log"

    def log(self) -> str:
        """The log since the last start."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def lines(self, *words: str) -> list[str]:
        """The lines of the log that have all the words, regardless of case."""
        words = [word.lower() for word in words]
        return [line for line in self.log().splitlines() if all(word in line.lower() for word in words)]

    def is_running(self) -> bool:
        return self.pid is not None and is_alive(self.pid)

    def start(self, wait: float | None = 60) -> None:
        """Starts it, and waits until it serves; without `wait` (seconds) it may also die."""
        assert not self.is_running(), f"the {self.name} runs already"
        self.starts += 1
        self.pid = self.cluster.keeper_start(
            [*JAVA, "-cp", self.cluster.class_path, self.main], self.log_path
        )
        if wait is not None:
            eventually(self.is_serving, wait, lambda: f"the {self.name} is not up:\n{self.tail()}")

    def is_serving(self) -> bool:
        if not self.is_running():
            raise DaemonDied(f"the {self.name} died:\n{self.tail()}")
        return self.cluster.is_serving(self)

    def stop(self) -> None:
        """As an init script does it, but for the seconds that a NodeManager idles after all is done."""
        if self.is_running():
            os.kill(self.pid, signal.SIGTERM)
            end = time.monotonic() + 4
            while self.is_running() and time.monotonic() < end:
                time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """`kill -9`: containers stay."""
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
            eventually(lambda: not self.is_running(), 10)

    def tail(self) -> str:
        lines = self.log().splitlines()
        errors = [line for line in lines if "ERROR" in line or "Caused by" in line]
        return "\n".join(errors[-20:] + ["…"] + lines[-20:])


class DaemonDied(AssertionError):
    """A daemon ended though nobody asked it to."""


class Cluster:
    """A ResourceManager and a NodeManager with `yarn.io/gpu`, started and ended as a context.

    `version`     of Hadoop: 3.3.6 or 3.5.0
    `executor`    "default": DefaultContainerExecutor, containers are of the NodeManager's user;
                  "lce": LinuxContainerExecutor over the stand-in, containers are of the user who
                  submits, where this is root, and YARN assigns GPUs
    `node`        Creel's node, whose environment (CREEL_RUN_DIR, simulated GPUs) daemons and
                  containers have; without it, they have the machine's own. An agent that is started
                  after this was made finds Hadoop's configuration, else it knows of no YARN
    `smi`         the directory with the `nvidia-smi` that the NodeManager asks
    `conf`        the directory of `conf/` to start from; `distribution` says nothing of GPUs
    `gpu`         False leaves YARN without GPUs, as `creel yarn apply` finds it
    `properties`  further ones of yarn-site.xml
    `devices`     with "lce", root and `can_deny()`: YARN denies GPUs for real, by control groups of
                  the `devices` controller; the daemons have a /dev of their own with so many
                  `nvidiaN`, for which there is no driver, and an agent that is started after this
                  was made sees it too
    """

    def __init__(
        self,
        version: str = "3.3.6",
        executor: str = "default",
        node: Node | None = None,
        smi: Path | None = None,
        conf: str = "plain",
        gpu: bool = True,
        properties: dict[str, object] | None = None,
        devices: int = 0,
    ):
        self.version, self.executor, self.node = version, executor, node
        self.devices = devices
        self.directory = Path(tempfile.mkdtemp(prefix="creel-yarn-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.conf = self.directory / "conf"
        self.smi = smi or self.directory / "smi"
        # Of all beds on the machine, these are this one's.
        self.hierarchy = f"hadoop-yarn-{self.directory.name.removeprefix('creel-yarn-')}"
        keeper = [sys.executable, HERE / "keeper.py", self.directory]
        if devices:
            keeper = ["unshare", "--mount", HERE / "with-devices", str(devices), *keeper]
        self.keeper = subprocess.Popen(
            keeper,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for name in ("log", "local", "containers", "tmp", "staging", "bin", "smi"):
            (self.directory / name).mkdir()
        # Of any user's application.
        for name in ("tmp", "staging"):
            (self.directory / name).chmod(0o1777)
        share(JARS / version, self.directory / "jars")
        for name in ("creel", "creel-discovery"):
            share(BINARIES / name, self.directory / "bin" / name)
        share(BINARIES / "creel-discovery", self.directory / "smi" / "nvidia-smi")
        shutil.copy(HERE.parents[1] / "scripts" / "getGpusResources.sh", self.directory / "bin")
        self.path = f"{self.directory}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.class_path = f"{self.directory}/jars/*:{self.conf}"
        self.environment = {
            key: os.environ[key] for key in ("HOME", "LANG", "TZ", "JAVA_HOME") if key in os.environ
        }
        if node is not None:
            self.environment |= {
                key: node.environment[key] for key in OF_NODE if key in node.environment
            }
        self.environment |= {
            "PATH": self.path,
            "HADOOP_CONF_DIR": str(self.conf),
            "YARN_CONF_DIR": str(self.conf),
            "HADOOP_YARN_HOME": str(self.directory),
        }
        # A small race: somebody else may take one until the daemon does.
        self.ports = free_ports(7)
        self.resourcemanager = Daemon(
            self,
            "resourcemanager",
            "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
        )
        self.nodemanager = Daemon(
            self,
            "nodemanager",
            "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
        )
        self.applications = []
        self.write_conf(conf, gpu, properties or {})
        if executor == "lce":
            self.write_container_executor()
        if node is not None:
            node.environment["HADOOP_CONF_DIR"] = str(self.conf)
            if devices:
                node.prefix = ["nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt"]

    def write_conf(self, conf: str, gpu: bool, properties: dict[str, object]) -> None:
        shutil.copytree(HERE / "conf" / conf, self.conf)
        rm, scheduler, tracker, admin, web, nm, nm_web = self.ports
        site = {
            "yarn.resourcemanager.hostname": "localhost",
            "yarn.resourcemanager.bind-host": "127.0.0.1",
            "yarn.resourcemanager.address": f"localhost:{rm}",
            "yarn.resourcemanager.scheduler.address": f"localhost:{scheduler}",
            "yarn.resourcemanager.resource-tracker.address": f"localhost:{tracker}",
            "yarn.resourcemanager.admin.address": f"localhost:{admin}",
            "yarn.resourcemanager.webapp.address": f"localhost:{web}",
            "yarn.resourcemanager.am.max-attempts": 1,
            "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 100,
            # For so long it takes requests that no node can serve.
            "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": 0,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.scheduler.maximum-allocation-mb": 4096,
            "yarn.nodemanager.hostname": "localhost",
            "yarn.nodemanager.bind-host": "127.0.0.1",
            "yarn.nodemanager.address": f"localhost:{nm}",
            "yarn.nodemanager.localizer.address": "localhost:0",
            "yarn.nodemanager.collector-service.address": "localhost:0",
            "yarn.nodemanager.webapp.address": f"localhost:{nm_web}",
            "yarn.nodemanager.resource.memory-mb": 8192,
            "yarn.nodemanager.resource.cpu-vcores": 32,
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.local-dirs": self.directory / "local",
            "yarn.nodemanager.log-dirs": self.directory / "containers",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.9,
            # Logs of containers are for the tests to read.
            "yarn.nodemanager.delete.debug-delay-sec": 600,
            # Else a NodeManager takes 7 s to stop.
            "yarn.nodemanager.process-kill-wait.ms": 500,
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,HADOOP_CONF_DIR,YARN_CONF_DIR,"
            f"LANG,TZ,{','.join(OF_NODE)}",
            # Containers have bash's own PATH, whatever the NodeManager has: with a package,
            # creel-discovery is on it.
            "yarn.nodemanager.admin-env": f"MALLOC_ARENA_MAX=$MALLOC_ARENA_MAX,PATH={self.path}",
        }
        if gpu:
            site |= {
                "yarn.nodemanager.resource-plugins": "yarn.io/gpu",
                "yarn.nodemanager.resource-plugins.gpu.path-to-discovery-executables": self.smi,
            }
        if self.executor == "lce":
            prefix = "yarn.nodemanager.linux-container-executor"
            site |= {
                "yarn.nodemanager.container-executor.class": "org.apache.hadoop.yarn.server."
                "nodemanager.LinuxContainerExecutor",
                f"{prefix}.path": self.directory / "container-executor" / "container-executor",
                f"{prefix}.group": subprocess.check_output(["id", "-gn"], text=True).strip(),
                # Containers are the submitting user's.
                f"{prefix}.nonsecure-mode.limit-users": "false",
                f"{prefix}.cgroups.mount": "false",
                f"{prefix}.cgroups.mount-path": CGROUPS if self.devices else self.directory / "cgroup",
                f"{prefix}.cgroups.hierarchy": f"/{self.hierarchy}",
                # A directory that is none can't be removed as one: no need to try for long.
                f"{prefix}.cgroups.delete-delay-ms": 100,
                f"{prefix}.cgroups.delete-timeout-ms": 100,
            }
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.directory / "tmp"}
        (self.conf / "bed-yarn-site.xml").write_text(configuration(site | properties))
        (self.conf / "bed-core-site.xml").write_text(configuration(core))

    def write_container_executor(self) -> None:
        home = self.directory / "container-executor"
        home.mkdir()
        shutil.copy(HERE / "container-executor", home)
        if self.devices:
            groups = CGROUPS / "devices" / self.hierarchy
            (home / "devices").write_text(str(groups))
            self.keeper_ask({"sweep": str(groups)})
        else:
            # An empty directory of this name passes for a v1 controller.
            (self.directory / "cgroup" / "devices").mkdir(parents=True)

    def keeper_start(self, argv: list, log: Path) -> int:
        return self.keeper_ask(
            {"start": [str(word) for word in argv], "environment": self.environment, "log": str(log)}
        )["pid"]

    def keeper_ask(self, request: dict) -> dict:
        print(json.dumps(request), file=self.keeper.stdin, flush=True)
        return json.loads(self.keeper.stdout.readline())

    def start(self) -> "Cluster":
        self.resourcemanager.start()
        self.nodemanager.start()
        return self

    def end(self) -> None:
        """Ends all of it, at once."""
        for application in self.applications:
            application.process.kill()
        self.keeper.stdin.close()
        self.keeper.stdout.close()
        self.keeper.wait(30)

    def __enter__(self) -> "Cluster":
        try:
            return self.start()
        except BaseException:
            self.end()
            raise

    def __exit__(self, *_) -> None:
        self.end()

    def logs(self) -> str:
        """Where daemons have gone wrong, for a test that failed."""
        return "\n".join(
            f"-- {daemon.log_path}\n{daemon.tail()}"
            for daemon in (self.resourcemanager, self.nodemanager)
            if daemon.starts
        )

    def is_serving(self, daemon: Daemon) -> bool:
        try:
            if daemon is self.resourcemanager:
                return self.rm("/ws/v1/cluster/info")["clusterInfo"]["state"] == "STARTED"
            # The ResourceManager takes one that was killed for running, for minutes.
            return bool(daemon.lines("Registered with ResourceManager")) and any(
                node["state"] == "RUNNING" for node in self.nodes()
            )
        except OSError:
            return False

    @property
    def rm_url(self) -> str:
        return f"http://localhost:{self.ports[4]}"

    @property
    def nm_url(self) -> str:
        return f"http://localhost:{self.ports[6]}"

    def rm(self, path: str, body: dict | None = None):
        """The ResourceManager's REST: JSON, or None for an empty answer. With a body it is a POST."""
        return rest(f"{self.rm_url}{path}", body)

    def nm(self, path: str):
        """The NodeManager's REST."""
        return rest(f"{self.nm_url}{path}")

    def nodes(self) -> list[dict]:
        """`/ws/v1/cluster/nodes`."""
        found = (self.rm("/ws/v1/cluster/nodes")["nodes"] or {}).get("node", [])
        return found if isinstance(found, list) else [found]

    def resource(self, name: str = "yarn.io/gpu", of: str = "totalResource") -> int | None:
        """How much of a resource the ResourceManager says the node has, or as `usedResource`,
        gives; None if it doesn't know the resource."""
        (node,) = self.nodes()
        known = node[of]["resourceInformations"]["resourceInformation"]
        return next((entry["value"] for entry in known if entry["name"] == name), None)

    def application(self, user: str | None = None) -> "Application":
        """An application that runs scripts in containers, ended as a context."""
        return Application(self, user)

    def gpu_calls(self) -> dict[str, list[int]]:
        """What the stand-in container-executor was told: the minors that each container may not
        have."""
        record = self.directory / "container-executor" / "gpu-calls"
        calls = [line.split(" ", 1) for line in record.read_text().splitlines()] if record.exists() else []
        return {container: [int(minor) for minor in excluded.split(",") if minor] for container, excluded in calls}


class Container:
    """A container that an `Application` asked for."""

    def __init__(self, application: "Application", identity: str):
        self.application, self.id = application, identity
        self.exit = None
        self.diagnostics = None

    @property
    def directory(self) -> Path:
        """Where its standard output and error are."""
        containers = self.application.cluster.directory / "containers"
        return containers / self.application.id / self.id

    def stdout(self) -> str:
        path = self.directory / "stdout"
        return path.read_text(errors="replace") if path.exists() else ""

    def stderr(self) -> str:
        path = self.directory / "stderr"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, seconds: float = 30) -> "Container":
        """Until YARN says that it ended."""
        eventually(
            lambda: self.exit is not None,
            seconds,
            lambda: f"{self.id} runs:\n{self.stdout()}{self.stderr()}{self.application.log()}",
        )
        return self

    def output(self) -> str:
        """What it wrote, once it has ended well."""
        self.wait()
        assert self.exit == 0, f"{self.id}: {self.exit} {self.diagnostics}\n{self.stderr()}"
        return self.stdout()

    def stop(self) -> None:
        """Has its NodeManager stop it."""
        self.application.tell({"stop": self.id})

    def pids(self) -> list[int]:
        """Its processes, by the environment that YARN gives them. It has none for a moment after
        it was started."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"CONTAINER_ID={self.id}".encode() in environment:
                found.append(int(process.name))
        return found

    def kill(self) -> None:
        """`kill -9` of all that it runs, once it does."""
        for pid in eventually(self.pids, 10):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Application:
    """An application that runs scripts in containers: RunContainers.java, with this process telling
    it what to do."""

    def __init__(self, cluster: Cluster, user: str | None):
        self.cluster = cluster
        self.containers = {}
        self.asks = {}
        # Why the ResourceManager ended the application, if it did.
        self.refusal = None
        self.id = None
        self.log_path = cluster.directory / "log" / f"application-{len(cluster.applications)}.log"
        environment = cluster.environment | ({"HADOOP_USER_NAME": user} if user else {})
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*JAVA, "-cp", cluster.class_path, HERE / "RunContainers.java"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        cluster.applications.append(self)
        threading.Thread(target=self.read, daemon=True).start()
        eventually(lambda: self.id or self.fail_if_ended(), 60, self.log)

    def fail_if_ended(self) -> None:
        assert self.refusal is None, self.refusal
        assert self.process.poll() is None, f"the application ended:\n{self.log()}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]

    def read(self) -> None:
        for line in self.process.stdout:
            event = json.loads(line)
            match event["event"]:
                case "registered":
                    self.id = event["application"]
                case "started":
                    container = Container(self, event["container"])
                    self.containers[container.id] = container
                    self.asks[event["ask"]].append(container)
                case "finished":
                    container = self.containers[event["container"]]
                    container.diagnostics = event["diagnostics"]
                    container.exit = event["exit"]
                case "refused":
                    self.refusal = event["diagnostics"]

    def tell(self, request: dict) -> None:
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def ask(
        self,
        script: str,
        count: int = 1,
        gpus: int = 1,
        memory: int = 128,
        environment: dict[str, str] | None = None,
        label: str | None = None,
    ) -> list[Container]:
        """Asks for containers that run a bash script. The list grows as they start."""
        number = len(self.asks) + 1
        started = self.asks[number] = []
        path = self.cluster.directory / "tmp" / f"{self.id}-{number}.sh"
        path.write_text(script)
        path.chmod(0o755)
        request = {"ask": number, "count": count, "script": str(path), "gpus": gpus}
        request |= {"memory": memory, "vcores": 1, "environment": environment or {}, "label": label}
        self.tell(request)
        return started

    def run(self, script: str, count: int = 1, seconds: float = 30, **options) -> list[Container]:
        """Starts containers that run a bash script, and waits until all have started."""
        started = self.ask(script, count, **options)
        eventually(
            lambda: len(started) == count or self.fail_if_ended(),
            seconds,
            lambda: f"{len(started)} of {count} containers\n{self.log()}",
        )
        return started

    def end(self) -> None:
        """Stops the containers and ends the application."""
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.cluster.applications.remove(self)

    def __enter__(self) -> "Application":
        return self

    def __exit__(self, *_) -> None:
        self.end()


def can_deny() -> bool:
    """Whether this may make control groups of the v1 `devices` controller."""
    return os.geteuid() == 0 and os.access(CGROUPS / "devices" / "devices.deny", os.W_OK)


def configuration(properties: dict[str, object]) -> str:
    """A file of Hadoop's."""
    lines = [
        f"  <property><name>{escape(key)}</name><value>{escape(str(value))}</value></property>\n"
        for key, value in properties.items()
    ]
    return f"<?xml version=\"1.0\"?>\n<configuration>\n{''.join(lines)}</configuration>\n"


def share(source: Path, target: Path) -> Path:
    """Makes a file or tree available where every user may read it: the cache, or the build, may lie
    where only its owner may look."""
    assert source.exists(), f"no {source}: scripts/setup, then scripts/test or cargo build"
    def link(source, target):
        try:
            os.link(source, target)
        except OSError:
            shutil.copy(source, target)
    target.parent.mkdir(exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=link)
    else:
        link(source, target)
    return target


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def rest(url: str, body: dict | None = None):
    request = urllib.request.Request(
        url,
        headers={"Accept": "application/json", "Content-Type": "application/json"},
        data=None if body is None else json.dumps(body).encode(),
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.lstrip().startswith(("{", "[")) else None

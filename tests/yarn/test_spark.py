"""Real Spark, without isolation: each executor has a GPU of its own."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from audit import check, terms
from cluster import HERE, Cluster
from node import Node, eventually
from spark import Spark

KILLS = 20


@pytest.fixture(scope="module")
def node():
    with Node(gpus=["h200:2"]) as node:
        yield node


@pytest.fixture(scope="module")
def cluster(node):
    with Cluster(node=node) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster):
    with Spark(cluster) as spark:
        yield spark


def seen(directory: Path) -> dict[str, list[dict]]:
    """What tasks saw, by their container."""
    found = {}
    for path in (directory / "seen").glob("container_*"):
        lines = path.read_text().splitlines(keepends=True)
        # The last one of a process that was killed may be torn.
        found[path.name] = [json.loads(line) for line in lines if line.endswith("\n")]
    return {container: lines for container, lines in found.items() if lines}


def held(node) -> dict[str, dict]:
    return {lease["container"]: lease for lease in node.json("leases")["leases"]}


def executor(container: str) -> int | None:
    """The JVM of an executor; None before it runs."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"CONTAINER_ID={container}".encode() in environment and arguments[0].endswith(b"java"):
            return int(process.name)
    return None


def test_executors_are_killed_and_replaced(cluster, node, spark):
    """20 times in one application, and the agent once: at every moment each address is held by one
    container, and a GPU is free within a second of the kill."""
    submission = spark.submit(
        HERE / "apps" / "hold.py",
        executors=2,
        conf={
            "spark.executor.cores": 2,
            "spark.task.resource.gpu.amount": 0.05,
            "spark.task.maxFailures": 1000,
            "spark.stage.maxConsecutiveAttempts": 1000,
            "spark.yarn.max.executor.failures": 1000,
            "spark.locality.wait": 0,
        },
    )
    kills = {}
    end = time.monotonic() + 240

    def ready() -> list[str]:
        """Executors that live and have run a task."""
        assert submission.process.poll() is None, submission.tail()
        assert time.monotonic() < end, f"{len(kills)} kills\n{submission.tail()}"
        return [container for container in seen(submission.directory) if container not in kills]

    while len(kills) < KILLS:
        for container in ready():
            pid = executor(container)
            kills[container] = time.clock_gettime(time.CLOCK_BOOTTIME)
            os.kill(pid, signal.SIGKILL)
            if len(kills) == KILLS // 2:
                while len(ready()) < 2:
                    time.sleep(0.05)
                before = held(node)
                assert len(before) == 2
                node.kill()
                node.start()
                assert held(node) == before
                break
        time.sleep(0.05)
    while len(ready()) < 2:
        time.sleep(0.05)
    (submission.directory / "stop").touch()
    submission.wait()
    eventually(lambda: held(node) == {}, 5)

    found = terms(node.directory / "state")
    check(found)
    by_container = {term.container: term for term in found}
    observed = seen(submission.directory)
    assert len(observed) == KILLS + 2
    for container, lines in observed.items():
        for line in lines:
            assert tuple(line["addresses"]) == by_container[container].addresses
            assert by_container[container].covers(line["at"])
    for container, at in kills.items():
        assert by_container[container].end - at < 1


@pytest.mark.long
def test_executors_come_and_go_as_spark_needs_them(node, spark):
    """Dynamic allocation: idle executors leave their GPUs, and new ones get them."""
    submission = spark.submit(
        HERE / "apps" / "hold.py",
        executors=2,
        conf={
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": 0,
            "spark.dynamicAllocation.maxExecutors": 2,
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
            "spark.dynamicAllocation.schedulerBacklogTimeout": "100ms",
        },
    )
    pause = submission.directory / "pause"
    generations = []
    for _ in range(3):
        pause.unlink(missing_ok=True)
        eventually(lambda: len(held(node).keys() & seen(submission.directory).keys()) == 2, 60)
        generations.append(set(held(node)))
        pause.touch()
        eventually(lambda: held(node) == {}, 60)
    (submission.directory / "stop").touch()
    submission.wait()
    assert len(set.union(*generations)) == 6
    check(terms(node.directory / "state"))


def test_cluster_mode_with_the_script_shipped_and_two_gpus(cluster, node, spark):
    """Spark's own configuration, in the container's directory, says that there are two."""
    submission = spark.submit(
        HERE / "apps" / "resources.py",
        mode="cluster",
        files=(cluster.directory / "bin" / "getGpusResources.sh",),
        conf={
            "spark.executor.resource.gpu.amount": 2,
            "spark.task.resource.gpu.amount": 2,
            "spark.executor.resource.gpu.discoveryScript": "./getGpusResources.sh",
        },
    )
    submission.wait()
    tasks = json.loads((submission.directory / "tasks.json").read_text())
    assert {tuple(task["addresses"]["gpu"]) for task in tasks} == {("0", "1")}
    (container,) = {task["container"] for task in tasks}
    (term,) = [term for term in terms(node.directory / "state") if term.container == container]
    assert len(term.devices) == 2
    eventually(lambda: held(node) == {}, 5)


def test_a_plugin_that_asks_nobody(cluster, node, spark, tmp_path):
    """Its device has no lease and is given to nobody, and it is left alone."""
    jar = spark.directory / "own.jar"
    classes = tmp_path / "classes"
    source = HERE / "apps" / "OwnDiscovery.java"
    subprocess.run(["javac", "-cp", f"{spark.home}/jars/*", "-d", classes, source], check=True)
    subprocess.run(["jar", "--create", "--file", jar, "-C", classes, "."], check=True)
    submission = spark.submit(
        HERE / "apps" / "hold.py",
        conf={
            "spark.jars": jar,
            "spark.resources.discoveryPlugin": "OwnDiscovery",
            "spark.own.address": 1,
            "spark.executor.cores": 1,
        },
    )
    (container,) = eventually(lambda: seen(submission.directory), 60, submission.tail)
    assert seen(submission.directory)[container][0]["addresses"] == ["1"]
    pid = executor(container)
    node.use("--gpu", "1", "--mib", "100", "--pid", str(pid))
    with cluster.application() as application:
        (other,) = application.run("getGpusResources.sh; sleep 5")
        eventually(lambda: other.stdout(), 20, other.stderr)
        assert json.loads(other.stdout())["addresses"] == ["0"]
        assert held(node)[other.id]["devices"] == [node.json("gpus")["gpus"][0]["uuid"]]
        other.wait()
    assert container not in held(node)
    assert executor(container) == pid
    (submission.directory / "stop").touch()
    submission.wait()

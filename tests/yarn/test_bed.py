"""The bed itself: real daemons with simulated GPUs, and Spark on them."""

import json
import os
from pathlib import Path

import pytest
from cluster import HERE, Cluster, can_deny
from node import Node, eventually, is_alive
from spark import Spark


@pytest.fixture(scope="module")
def cluster():
    with Node(gpus=["h200:2"]) as node, Cluster(node=node) as cluster:
        yield cluster


def test_the_resource_manager_counts_the_gpus_of_the_node(cluster):
    assert cluster.resource() == 2
    (node,) = cluster.nodes()
    assert node["state"] == "RUNNING"


def test_containers_run_and_get_what_they_ask_for(cluster):
    with cluster.application() as application:
        (one,) = application.run("echo $CONTAINER_ID; getGpusResources.sh", environment={"A": "b"})
        identity, resources = one.output().splitlines()
        assert identity == one.id
        assert json.loads(resources)["name"] == "gpu"

        (held,) = application.run("sleep 100", gpus=2)
        assert cluster.resource(of="usedResource") == 2
        waiting = application.ask("true")
        held.kill()
        assert held.wait().exit == 137
        eventually(lambda: waiting, 10)
        waiting[0].wait()

        (stopped,) = application.run("sleep 100", gpus=0)
        stopped.stop()
        assert stopped.wait().exit != 0

        with pytest.raises(AssertionError, match="greater than maximum allowed allocation"):
            application.run("true", gpus=3)


def program(pid: int) -> str:
    """What a process runs; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_nothing_is_left_when_the_keeper_goes():
    """Not even containers whose NodeManager was killed."""
    with Cluster(gpu=False) as cluster:
        (container,) = cluster.application().run("sleep 100", gpus=0)
        # What prepares the container comes and goes before.
        eventually(lambda: "sleep" in map(program, container.pids()), 10)
        pids = [*container.pids(), cluster.resourcemanager.pid]
        cluster.nodemanager.kill()
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))
    assert not cluster.directory.exists()


@pytest.mark.skipif(not can_deny(), reason="needs root and the v1 controller of devices")
def test_a_container_cannot_open_what_yarn_denies_it():
    script = """
        for minor in 0 1; do
            python3 -c "open('/dev/nvidia$minor')" 2>&1 | grep -o 'Errno [0-9]*'
        done
        echo; sleep 2
    """
    with Node(gpus=["h200:2"]) as node, Cluster(node=node, executor="lce", devices=2) as cluster:
        groups = Path("/sys/fs/cgroup/devices") / cluster.hierarchy
        with cluster.application("nobody") as application:
            containers = application.run(script, count=2)
            answers = {container.id: container.output().split("\n")[:2] for container in containers}
        calls = cluster.gpu_calls()
    denied, no_driver = "Errno 1", "Errno 6"
    assert answers == {
        container: [denied if minor in calls[container] else no_driver for minor in range(2)]
        for container in calls
    }
    assert sorted(calls.values()) == [[0], [1]]
    assert not groups.exists()


def test_spark_has_the_gpus_that_the_script_finds():
    """In cluster mode, as another user where that is possible, under LinuxContainerExecutor."""
    user = "nobody" if os.geteuid() == 0 else None
    with (
        Node(gpus=["h200:1"]) as node,
        Cluster(node=node, executor="lce") as cluster,
        Spark(cluster, user) as spark,
    ):
        submission = spark.submit(HERE / "apps" / "resources.py", mode="cluster")
        submission.wait()
        tasks = json.loads(Path(submission.directory / "tasks.json").read_text())
        assert sum(task["sum"] for task in tasks) == sum(range(100))
        assert {tuple(task["addresses"]["gpu"]) for task in tasks} == {("0",)}
        calls = cluster.gpu_calls()
        # The master may have none, the executor all.
        assert sorted(calls.values()) == [[], [0]]
        (executor,) = {task["container"] for task in tasks}
        assert calls[executor] == []

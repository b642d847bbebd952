"""Leases in real containers: who holds what, how much, and for how long."""

import json
from contextlib import contextmanager

import pytest
from cluster import Cluster
from node import Node, eventually

# What a container prints once it holds its GPUs; it goes on for as long as it is let.
ASK = "getGpusResources.sh; exec sleep 600"


@contextmanager
def bed(**options):
    """A cluster, and a node that knows where its configuration is."""
    node = Node(gpus=["h200:2"])
    cluster = Cluster(node=node, **options)
    with node, cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster():
    with bed() as cluster:
        yield cluster


def leases(cluster) -> dict[str, dict]:
    return {lease["container"]: lease for lease in cluster.node.json("leases")["leases"]}


def addresses(container) -> list[str]:
    """What its script was told, as soon as it was."""
    line = eventually(container.stdout, 30, container.stderr).splitlines()[0]
    return json.loads(line)["addresses"]


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    yield
    if "cluster" in request.fixturenames:
        cluster = request.getfixturevalue("cluster")
        eventually(lambda: not leases(cluster), 10, lambda: cluster.node.json("leases"))


def test_each_holds_what_yarn_allotted(cluster):
    with cluster.application() as application:
        one, two = application.run(ASK, 2)
        assert sorted(addresses(one) + addresses(two)) == ["0", "1"]
        held = leases(cluster)
        assert held.keys() == {one.id, two.id}
        assert {lease["source"] for lease in held.values()} == {"resourcemanager"}
        (none,) = application.run("CREEL_GPUS=2 getGpusResources.sh", gpus=0)
        assert json.loads(none.output())["addresses"] == []
        one.kill()
        two.kill()
        (both,) = application.run(ASK, gpus=2, environment={"CREEL_GPUS": "1"})
        assert addresses(both) == ["0", "1"]


def test_who_says_to_be_another_gets_its_own(cluster):
    with cluster.application() as application:
        (one,) = application.run(ASK)
        addresses(one)
        forge = f"CONTAINER_ID={one.id} getGpusResources.sh; exec sleep 600"
        (two,) = application.run(forge)
        assert set(addresses(one) + addresses(two)) == {"0", "1"}
        assert leases(cluster).keys() == {one.id, two.id}
        # It leaves its ancestors and its session.
        detached = (
            "setsid --fork sh -c 'sleep 0.5; getGpusResources.sh > $0/detached 2>&1' $PWD; "
            "sleep 2; cat detached"
        )
        (three,) = application.run(detached, gpus=0)
        assert "in no YARN container" in three.output()


def test_a_gpu_is_free_within_a_second_of_a_kill(cluster):
    with cluster.application() as application:
        for _ in range(3):
            one, two = application.run(ASK, 2)
            held = set(addresses(one) + addresses(two))
            assert held == {"0", "1"}
            for container in (one, two):
                container.kill()
                eventually(lambda: container.id not in leases(cluster), 1)


def test_leases_outlive_agent_and_node_manager():
    recovery = "yarn.nodemanager.recovery."
    properties = {
        f"{recovery}enabled": "true",
        f"{recovery}supervised": "true",
        f"{recovery}dir": "${yarn.nodemanager.log-dirs}/recovery",
    }
    with bed(properties=properties) as cluster, cluster.application() as application:
        one, two = application.run(ASK, 2)
        held = addresses(one), addresses(two)
        before = leases(cluster)
        cluster.node.kill()
        cluster.node.start()
        assert leases(cluster) == before
        cluster.nodemanager.kill()
        assert leases(cluster) == before
        cluster.nodemanager.start()
        assert leases(cluster) == before
        for container in (one, two):
            container.kill()
            eventually(lambda: container.id not in leases(cluster), 1)
        assert sorted(held[0] + held[1]) == ["0", "1"]

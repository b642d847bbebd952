"""Slices of MIG are GPUs to YARN, beside whole ones."""

import json

import pytest
from audit import check, terms
from cluster import Cluster
from node import Node, eventually


@pytest.fixture(scope="module")
def node():
    with Node(gpus=["a100:1,mig=3x2g.10gb+1x1g.5gb", "h200:1"]) as node:
        yield node


@pytest.fixture(scope="module")
def cluster(node):
    with Cluster(node=node) as cluster:
        yield cluster


def test_five_containers_hold_five_different_devices(cluster, node):
    assert cluster.resource() == 5
    script = f"""
        getGpusResources.sh
        CREEL_ADDRESS=uuid getGpusResources.sh
        while [ ! -e {cluster.directory}/tmp/stop ]; do sleep 0.1; done
    """
    with cluster.application() as application:
        containers = application.run(script, count=5)
        eventually(lambda: all(one.stdout().count("\n") == 2 for one in containers), 30)
        leases = {lease["container"]: lease for lease in node.json("leases")["leases"]}
        (cluster.directory / "tmp" / "stop").touch()
        answers = {one.id: [json.loads(line) for line in one.output().splitlines()] for one in containers}
    indexes, uuids = zip(*answers.values())
    assert sorted(one["addresses"] for one in indexes) == [[str(n)] for n in range(5)]
    found = [uuid for one in uuids for uuid in one["addresses"]]
    assert len(set(found)) == 5
    assert sum(uuid.startswith("MIG-") for uuid in found) == 4
    assert sum(uuid.startswith("GPU-") for uuid in found) == 1
    for container, (_, by_uuid) in answers.items():
        assert leases[container]["devices"] == by_uuid["addresses"]
    eventually(lambda: node.json("leases")["leases"] == [], 5)
    check(terms(node.directory / "state"))


def test_slices_show_as_gpus_in_rest(cluster):
    shown = cluster.nm("/ws/v1/node/resources/yarn.io%2Fgpu")["gpuDeviceInformation"]["gpus"]
    assert len(shown) == 5
    assert [gpu["uuid"][:4] for gpu in shown] == ["MIG-"] * 4 + ["GPU-"]
    assert shown[0]["gpuMemoryUsage"]["totalMemoryMiB"] < 10_240 <= shown[4]["gpuMemoryUsage"]["totalMemoryMiB"]

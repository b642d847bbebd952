"""What a NodeManager makes of Creel's nvidia-smi, whatever the driver does."""

import fields
import pytest
from cluster import Cluster, share
from node import BINARIES, Node, eventually

POLLS = 200

# As text that XML would take for its own, and that no terminal likes.
TOPOLOGY = r"""
[[gpu]]
model = "h200"
name = "NVIDIA & Söhne <H200> \"]]>\u0007"
utilization = [23, 5]
temperature = 61
memory = { used_mib = 701 }

[[gpu]]
model = "h200"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    topology = tmp_path_factory.mktemp("gpus") / "gpus.toml"
    topology.write_text(TOPOLOGY)
    with Node("discovery.interval=1s", gpus=[topology]) as node:
        yield node


@pytest.fixture(scope="module", autouse=True)
def slow_node():
    """A node whose driver takes half a minute, which pass while other tests run."""
    node = Node(gpus=["h200:16"])
    node.fault("--function", "nvmlDeviceGetHandleByIndex_v2", "--delay", "2000")
    with node:
        yield node
        # What looks at the GPUs just now would outlive the agent by its deadline.
        node.fault("--clear")


@pytest.fixture(scope="module")
def smi(tmp_path_factory):
    """A directory with Creel's nvidia-smi that counts how often it was asked, in `calls`."""
    directory = tmp_path_factory.mktemp("smi")
    share(BINARIES / "creel-discovery", directory / "creel" / "nvidia-smi")
    script = directory / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\necho "$@" >>{directory}/calls\nexec {directory}/creel/nvidia-smi "$@"\n'
    )
    script.chmod(0o755)
    return directory


@pytest.fixture(scope="module", params=["3.3.6", pytest.param("3.5.0", marks=pytest.mark.long)])
def cluster(request, node, smi):
    properties = {"yarn.nodemanager.resource-monitor.interval-ms": 20}
    with Cluster(request.param, node=node, smi=smi, properties=properties) as cluster:
        yield cluster


def polls(smi) -> int:
    return (smi / "calls").read_text().count("\n")


def endure(cluster, smi, count=POLLS) -> None:
    """Polls pass, and the NodeManager has nothing to say of its GPUs."""
    before = polls(smi)
    eventually(lambda: polls(smi) >= before + count, 120, lambda: f"{polls(smi) - before} polls")
    assert cluster.nodemanager.is_running()
    assert cluster.nodes()[0]["state"] == "RUNNING"
    assert cluster.nodemanager.lines(" ERROR ") == []
    assert cluster.nodemanager.lines("Failed to discover GPU") == []


def restart(cluster) -> None:
    cluster.nodemanager.stop()
    cluster.nodemanager.start()


def test_rest_shows_every_field(cluster):
    document = fields.compare(cluster)
    assert document.findtext("gpu/product_name").startswith("NVIDIA & Söhne <H200>")
    assert document.findtext("gpu/utilization/gpu_util") == "23 %"
    assert document.findtext("gpu/temperature/gpu_temp") == "61 C"


@pytest.mark.parametrize(
    "fault",
    [
        ["--hang"],
        ["--function", "nvmlInit_v2", "--error", "DRIVER_NOT_LOADED"],
        ["--error", "UNKNOWN"],
        ["--gpu", "0", "--lost"],
    ],
    ids=["hang", "init", "garbage", "lost"],
)
def test_a_driver_that_goes_wrong(cluster, node, smi, fault):
    """While it runs, a NodeManager keeps what it counted; a new one starts, with what is fit for
    use."""
    assert cluster.resource() == 2
    node.fault(*fault)
    # Known by its UUID, a GPU that is lost may go: the others keep their places.
    count = 1 if "--lost" in fault else 2
    try:
        endure(cluster, smi, POLLS // 4)
        assert cluster.resource() == 2
        restart(cluster)
        endure(cluster, smi)
        assert cluster.resource() == count
    finally:
        node.fault("--clear")
    eventually(lambda: all(gpu["health"]["state"] == "healthy" for gpu in node.json("gpus")["gpus"]), 20)
    if count != 2:
        restart(cluster)


def test_no_agent(cluster, node, smi):
    """The last snapshot answers; where it was damaged, the copy in the state directory."""
    node.kill()
    try:
        restart(cluster)
        endure(cluster, smi)
        assert cluster.resource() == 2
        snapshot = node.run_dir / "snapshot.json"
        for garbage in (b"", b"{", b"\0" * 4096, snapshot.read_bytes()[:-100]):
            snapshot.write_bytes(garbage)
            before = polls(smi)
            eventually(lambda: polls(smi) > before + 10, 60)
        restart(cluster)
        assert cluster.resource() == 2
        assert cluster.nodemanager.lines(" ERROR ") == []
    finally:
        node.start()


def test_sixteen_gpus_that_take_two_seconds_each(slow_node, smi):
    """A driver that is slow from the start: once the agent knows the GPUs, nobody waits for it."""
    eventually(lambda: slow_node.creel("gpus", check=False).returncode == 0, 90, slow_node.log)
    properties = {"yarn.nodemanager.resource-monitor.interval-ms": 20}
    with Cluster(node=slow_node, smi=smi, properties=properties) as cluster:
        assert cluster.resource() == 16
        endure(cluster, smi)

"""The scripts that a real NodeManager runs, and what the ResourceManager makes of them."""

import getpass
import subprocess

import pytest
from cluster import Cluster
from node import BINARIES, Node, eventually

CREEL = BINARIES / "creel"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    stores = tmp_path_factory.mktemp("stores")
    sick = stores / "sick"
    other = stores / "health.sh"
    other.write_text(f"#!/bin/sh\necho fine\n[ ! -e {sick} ] || cat {sick}\n")
    other.chmod(0o755)
    nm = "yarn.nodemanager"
    properties = {
        "yarn.node-labels.enabled": "true",
        "yarn.node-labels.configuration-type": "distributed",
        "yarn.node-labels.fs-store.root-dir": f"file://{stores}/labels",
        "yarn.node-attribute.fs-store.root-dir": f"file://{stores}/attributes",
        f"{nm}.node-labels.provider": "script",
        f"{nm}.node-labels.provider.script.path": CREEL,
        f"{nm}.node-labels.provider.script.opts": "yarn,node-label",
        f"{nm}.node-labels.provider.fetch-interval-ms": 500,
        f"{nm}.node-labels.resync-interval-ms": 1000,
        f"{nm}.node-attributes.provider": "script",
        f"{nm}.node-attributes.provider.script.path": CREEL,
        f"{nm}.node-attributes.provider.script.opts": "yarn,node-attributes",
        f"{nm}.node-attributes.provider.fetch-interval-ms": 500,
        f"{nm}.node-attributes.resync-interval-ms": 1000,
        f"{nm}.health-checker.script.path": CREEL,
        f"{nm}.health-checker.script.opts": f"yarn,health,--timeout,10,--chain,{other}",
        f"{nm}.health-checker.interval-ms": 500,
        f"{nm}.resource-monitor.interval-ms": 500,
    }
    with Node("discovery.interval=1s", gpus=["h200:2"]) as node:
        # What the scripts read.
        eventually(lambda: node.creel("yarn", "node-attributes", check=False).returncode == 0, 10)
        with Cluster(node=node, properties=properties) as cluster:
            cluster.sick = sick
            yield cluster


def the_node(cluster) -> dict:
    (node,) = cluster.nodes()
    return node


def attributes(cluster) -> dict[str, str]:
    found = (the_node(cluster).get("nodeAttributesInfo") or {}).get("nodeAttributeInfo", [])
    return {entry["name"]: entry["value"] for entry in found}


def fault(cluster, gpu: int, *what: str) -> None:
    directory = cluster.node.directory / "gpu"
    subprocess.run(
        [BINARIES / "simulated-gpu", "fault", "--dir", directory, "--gpu", str(gpu), *what], check=True
    )


def test_the_node_has_the_label_once_the_cluster_knows_it(cluster):
    assert not the_node(cluster).get("nodeLabels")
    label = {"nodeLabelInfo": [{"name": "gpu", "exclusivity": "false"}]}
    cluster.rm(f"/ws/v1/cluster/add-node-labels?user.name={getpass.getuser()}", label)
    eventually(lambda: the_node(cluster).get("nodeLabels") == ["gpu"], 15)


def test_the_node_has_all_attributes(cluster):
    printed = cluster.node.creel("yarn", "node-attributes").stdout.splitlines()
    ours = {}
    for line in printed:
        name, kind, value = line.removeprefix("NODE_ATTRIBUTE:").split(",")
        assert kind == "STRING"
        ours[name] = value
    assert ours["GPU_COUNT"] == "2" and ours["GPU_MODEL"] == "NVIDIA-H200"
    eventually(lambda: attributes(cluster) == ours, 15, lambda: f"{attributes(cluster)} {ours}")


def test_another_health_script_is_heard_through_ours(cluster):
    cluster.sick.write_text("ERROR the disk is full\n")
    eventually(lambda: the_node(cluster)["state"] == "UNHEALTHY", 15)
    assert "ERROR the disk is full" in the_node(cluster)["healthReport"]
    cluster.sick.unlink()
    eventually(lambda: the_node(cluster)["state"] == "RUNNING", 15)


def test_a_node_is_unhealthy_when_no_gpu_is_left_and_not_before(cluster):
    fault(cluster, 1, "--lost")
    # The agent has seen it, and YARN the count without it.
    eventually(lambda: attributes(cluster)["GPU_COUNT"] == "1", 20)
    assert the_node(cluster)["state"] == "RUNNING"
    fault(cluster, 0, "--lost")
    eventually(lambda: the_node(cluster)["state"] == "UNHEALTHY", 20)
    assert "ERROR no GPU of this node is fit for use: GPU 0: " in the_node(cluster)["healthReport"]
    for gpu in (0, 1):
        fault(cluster, gpu, "--clear")
    eventually(lambda: the_node(cluster)["state"] == "RUNNING", 20)
    eventually(lambda: attributes(cluster)["GPU_COUNT"] == "2", 20)


def test_an_agent_that_is_gone_changes_nothing(cluster):
    before = attributes(cluster)
    cluster.node.process.kill()
    cluster.node.process.wait()
    # The scripts run again and again.
    cluster.sick.write_text("ERROR the disk is full\n")
    eventually(lambda: the_node(cluster)["state"] == "UNHEALTHY", 15)
    cluster.sick.unlink()
    eventually(lambda: the_node(cluster)["state"] == "RUNNING", 15)
    assert the_node(cluster)["nodeLabels"] == ["gpu"]
    assert attributes(cluster) == before
    cluster.node.start()

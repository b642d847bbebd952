"""`creel yarn status`, and the ResourceManager's count of GPUs, on real daemons."""

import json
import os
import subprocess

import pytest
from cluster import JAVA, Cluster
from node import BINARIES, Node, eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("programs")
    smi = directory / "smi"
    smi.mkdir()
    (smi / "nvidia-smi").symlink_to(BINARIES / "creel-discovery")
    node = Node(
        "discovery.interval=1s",
        "yarn.update_resource=true",
        f"yarn.nvidia_smi_dir={smi}",
        gpus=["h200:2"],
    )
    cluster = Cluster(
        node=node,
        smi=smi,
        properties={"yarn.nodemanager.resource-plugins.fail-fast": "false"},
    )
    # What a distribution has in /usr/bin.
    yarn = directory / "yarn"
    java = " ".join([*JAVA, "-cp", f"'{cluster.class_path}'"])
    yarn.write_text(
        '#!/bin/sh\n[ "$1" = rmadmin ] || exit 1\nshift\n'
        f'exec {java} org.apache.hadoop.yarn.client.cli.RMAdminCLI "$@"\n'
    )
    yarn.chmod(0o755)
    node.environment["PATH"] = f"{directory}:{node.environment['PATH']}"
    node.environment["HADOOP_CONF_DIR"] = str(cluster.conf)
    with node, cluster:
        yield cluster


def status(cluster, *arguments: str) -> tuple[int, dict]:
    done = cluster.node.creel(
        "--json",
        "yarn",
        "status",
        *arguments,
        check=False,
        env=cluster.node.environment | {"CREEL_YARN_NVIDIA_SMI_DIR": str(cluster.smi)},
    )
    return done.returncode, json.loads(done.stdout)


def fault(cluster, gpu: int, *what: str) -> None:
    directory = cluster.node.directory / "gpu"
    subprocess.run(
        [BINARIES / "simulated-gpu", "fault", "--dir", directory, "--gpu", str(gpu), *what], check=True
    )


def test_a_node_of_which_all_is_well_differs_in_nothing(cluster):
    code, seen = status(cluster)
    assert seen["differences"] == [] and code == 0, seen
    assert seen["gpus"] == {"resourcemanager": 2, "used": 0, "nodemanager": 2, "shown": 2, "fit": 2}
    assert seen["node"]["state"] == "RUNNING"
    assert seen["resourcemanager"]["version"] == seen["nodemanager"]["version"] == cluster.version
    assert seen["configuration"]["conf_dir"] == os.path.realpath(cluster.conf)


def test_the_count_of_gpus_is_lowered_while_one_is_lost(cluster):
    fault(cluster, 1, "--lost")
    eventually(lambda: cluster.resource() == 1, 30, lambda: cluster.node.log())
    assert (cluster.resource("memory-mb"), cluster.resource("vcores")) == (8192, 32)
    _, seen = status(cluster)
    assert seen["gpus"]["fit"] == 1
    fault(cluster, 1, "--clear")
    eventually(lambda: cluster.resource() == 2, 30, lambda: cluster.node.log())
    log = cluster.node.log()
    # Before the NodeManager was up.
    assert "is not kept" not in log[log.index("gives out 1 GPUs of this node now, not 2") :]


def test_daemons_that_are_down_are_named_and_the_rest_is_told(cluster):
    cluster.resourcemanager.kill()
    code, seen = status(cluster)
    assert code == 1
    (difference,) = seen["differences"]
    assert f"ResourceManager at {cluster.rm_url} can't be reached" in difference["what"]
    assert seen["node"] is None and seen["nodemanager"]["version"] == cluster.version
    cluster.nodemanager.kill()
    code, seen = status(cluster)
    assert (code, len(seen["differences"])) == (1, 2)
    assert seen["gpus"]["fit"] == 2
    cluster.node.process.kill()
    cluster.node.process.wait()
    code, seen = status(cluster)
    assert code == 1 and "cannot reach the agent" in seen["differences"][2]["what"], seen

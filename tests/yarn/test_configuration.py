"""`creel yarn apply` on the files of a distribution, and real daemons that start from them."""

import fields
import pytest
from cluster import Cluster
from node import Node


@pytest.fixture(scope="module")
def node():
    with Node(gpus=["h200:2"]) as node:
        yield node


def files(cluster) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(cluster.conf.glob("*.xml"))}


def yarn(cluster, node, verb: str) -> str:
    options = [] if verb == "undo" else ["--nvidia-smi-dir", str(cluster.smi)]
    return node.creel("yarn", verb, "--conf-dir", str(cluster.conf), *options).stdout


@pytest.mark.parametrize(
    "version, conf, restarts", [("3.3.6", "distribution", True), ("3.5.0", "bare", False)]
)
def test_apply_and_undo(node, version, conf, restarts):
    """`distribution` has another resource type, comments and includes; `bare` has nothing, not even
    the scheduler's calculator, without which the ResourceManager dies of a resource type."""
    cluster = Cluster(version, node=node, conf=conf, gpu=False)
    try:
        before = files(cluster)
        proposed = yarn(cluster, node, "diff")
        assert "yarn.io/gpu" in proposed and files(cluster) == before
        yarn(cluster, node, "apply")
        applied = files(cluster)
        assert applied != before
        yarn(cluster, node, "apply")
        assert files(cluster) == applied
        assert yarn(cluster, node, "diff") == ""
        for name in ("core-site.xml", "bed-yarn-site.xml", "bed-core-site.xml"):
            assert applied[name] == before[name]

        cluster.start()
        assert cluster.resource() == 2
        fields.compare(cluster)
        assert cluster.resource("licence") == (0 if conf == "distribution" else None)
        with cluster.application() as application:
            application.run("true", count=2)

        yarn(cluster, node, "undo")
        assert files(cluster) == before
        if restarts:
            cluster.nodemanager.stop()
            cluster.resourcemanager.stop()
            cluster.start()
            assert cluster.resource() is None
    finally:
        cluster.end()

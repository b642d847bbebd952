"""Where YARN assigns GPUs itself, leases are what it assigned."""

import json
import os

import pytest
from audit import check, terms
from cluster import Cluster, can_deny
from node import Node, eventually

GPUS = 4


@pytest.fixture(
    scope="module",
    params=[
        ("3.3.6", 0),
        pytest.param(
            ("3.3.6", GPUS),
            marks=pytest.mark.skipif(not can_deny(), reason="needs root and v1 devices"),
        ),
        # Its REST no longer says which GPU a container has: only what it can open does.
        pytest.param(
            ("3.5.0", GPUS),
            marks=pytest.mark.skipif(not can_deny(), reason="needs root and v1 devices"),
        ),
    ],
    ids=["3.3.6", "3.3.6-denied", "3.5.0-denied"],
)
def cluster(request):
    version, devices = request.param
    node = Node(gpus=[f"h200:{GPUS}"])
    cluster = Cluster(version, executor="lce", node=node, devices=devices)
    with node, cluster:
        yield cluster


def test_a_lease_is_what_yarn_assigned(cluster):
    """At every launch: containers of 0, 1 and 2 GPUs come and go, in every mixture."""
    script = "getGpusResources.sh; getGpusResources.sh; creel --json leases; sleep 0.$((RANDOM % 10))"
    # Where groups can't be removed, each end of a container takes seconds.
    each = 4 if cluster.devices else 1
    user = "nobody" if os.geteuid() == 0 else None
    node = cluster.node
    uuids = [gpu["uuid"] for gpu in node.json("gpus")["gpus"]]
    with cluster.application(user) as application:
        asks = [application.ask(script, count=each, gpus=gpus) for gpus in (1, 2, 0, 1)]
        eventually(lambda: all(len(ask) == each for ask in asks), 60, application.log)
        containers = [container for ask in asks for container in ask]
        outputs = {container.id: container.output().split("\n", 2) for container in containers}
    calls = cluster.gpu_calls()
    assert len(calls) == 4 * each
    for container, (first, second, leases) in outputs.items():
        assert first == second
        assigned = [minor for minor in range(GPUS) if minor not in calls[container]]
        own = [lease for lease in json.loads(leases)["leases"] if lease["container"] == container]
        held = [uuid for lease in own for uuid in lease["devices"]]
        assert sorted(held) == sorted(uuids[minor] for minor in assigned)
        addresses = json.loads(first)["addresses"]
        if cluster.devices:
            # CUDA numbers what it can open.
            assert addresses == [str(n) for n in range(len(assigned))]
        else:
            assert sorted(addresses) == [str(minor) for minor in assigned]
    check(terms(node.directory / "state"))
    eventually(lambda: node.json("leases")["leases"] == [], 5)

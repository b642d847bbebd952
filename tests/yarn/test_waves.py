"""Many containers that come, go and are killed: nobody ever holds what another one has."""

import json
import os
import random
import signal

import pytest
from audit import check, terms
from cluster import Cluster
from node import Node, eventually


@pytest.mark.long
def test_two_hundred_containers_with_random_kills():
    chance = random.Random(4)
    script = "getGpusResources.sh; touch ready; sleep $((RANDOM % 3)).$((RANDOM % 10))"
    node = Node(gpus=["h200:2", "a100:1,mig=2x3g.20gb"])
    cluster = Cluster(node=node)
    with node, cluster:
        assert cluster.resource() == 4
        with cluster.application() as application:
            containers = []
            while len(containers) < 200:
                wave = [
                    application.ask(script, count=5, gpus=gpus) for gpus in (1, 2)
                ]
                eventually(lambda: all(len(ask) == 5 for ask in wave), 120, application.log)
                started = [container for ask in wave for container in ask]
                containers += started
                for container in chance.sample(started, 4):
                    # One process of it, or all: whatever is left holds the GPU.
                    pids = container.pids()
                    for pid in pids if chance.random() < 0.5 else pids[:1]:
                        try:
                            os.kill(pid, signal.SIGKILL)
                        except ProcessLookupError:
                            pass
                if chance.random() < 0.25:
                    node.kill()
                    node.start()
            for container in containers:
                container.wait(60)
        eventually(lambda: node.json("leases")["leases"] == [], 10)
        found = terms(node.directory / "state")
        check(found)
        assert all(term.end is not None for term in found)
        asked = [container for container in containers if container.stdout()]
        assert len(asked) > 100
        held = {term.container: term for term in found}
        for container in asked:
            addresses = json.loads(container.stdout())["addresses"]
            assert list(held[container.id].addresses) == addresses
        # Nothing was lost to a holder that is dead: all of it can be had at once.
        with cluster.application() as application:
            four = application.run("getGpusResources.sh; sleep 2", count=4)
            assert sorted(json.loads(one.output())["addresses"] for one in four) == [[str(n)] for n in range(4)]

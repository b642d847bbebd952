"""Fixtures: clusters, with a node of Creel beside them.

A cluster takes 6 seconds to start and a Spark application 25, so tests share them: a module has one
cluster, and asks one application many things.
"""

import pytest
from cluster import Cluster
from node import BINARIES


def pytest_configure(config):
    missing = [
        name
        for name in ("creel", "creeld", "creel-discovery", "simulated-gpu")
        if not (BINARIES / name).exists()
    ]
    if missing:
        pytest.exit(f"{BINARIES} has no {', '.join(missing)}: run scripts/test", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows what its daemons have to say."""
    report = yield
    if report.failed:
        for fixture in item.funcargs.values():
            if isinstance(fixture, Cluster):
                report.sections.append((f"the cluster in {fixture.directory}", fixture.logs()))
                if fixture.node is not None:
                    report.sections.append(("log of its node", fixture.node.log()))
    return report

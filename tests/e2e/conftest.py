"""Fixtures: nodes, clients, data.

A test that only asks shares one node with the others of the session. A test that changes a node
or looks at its numbers takes one of its own, from `start`.
"""

import pyarrow
import pyarrow.parquet
import pytest
from flight_sql import Client
from node import BINARIES, Node


def pytest_configure(config):
    missing = [
        name
        for name in ("creel", "creeld", "creel-executor", "creel-discovery", "simulated-gpu")
        if not (BINARIES / name).exists()
    ]
    if missing:
        pytest.exit(f"{BINARIES} has no {', '.join(missing)}: run scripts/test", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the logs of its nodes."""
    report = yield
    if report.failed:
        for fixture in item.funcargs.values():
            for node in fixture.nodes if isinstance(fixture, Starter) else [fixture]:
                if isinstance(node, Node):
                    report.sections.append((f"log of the node in {node.directory}", node.log()))
    return report


class Starter:
    """Starts nodes, and ends them with its test."""

    def __init__(self):
        self.nodes = []

    def __call__(self, *settings: str, **options) -> Node:
        node = Node(*settings, **options)
        self.nodes.append(node)
        return node.start()


@pytest.fixture
def start():
    starter = Starter()
    yield starter
    for node in starter.nodes:
        node.end()


@pytest.fixture(scope="session")
def node():
    """A node with the machine's own GPUs, most likely none."""
    with Node() as node:
        yield node


@pytest.fixture(scope="session")
def gpu_node():
    """A node with two GPUs, one of them cut into slices."""
    with Node(gpus=["a100:1,mig=3x2g.10gb+1x1g.5gb", "h200:1"]) as node:
        yield node


@pytest.fixture(scope="session")
def simulated_gpu_node():
    """A node with one GPU, for queries that run on it."""
    with Node(gpus=["rtx6000:1"]) as node:
        yield node


@pytest.fixture
def client(node):
    """A connection to the shared node."""
    with Client(node.socket) as client:
        yield client


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A directory that all users may read: `numbers/part-{0,1}.parquet`, `numbers.csv`,
    `numbers.json`, of `n` 0…9999 and `name`, null where n is a multiple of 100."""
    directory = tmp_path_factory.mktemp("data")
    for path in [directory, *directory.parents][:3]:
        path.chmod(0o755)
    values = list(range(10_000))
    names = [None if n % 100 == 0 else f"name {n}" for n in values]
    table = pyarrow.table({"n": pyarrow.array(values, pyarrow.int64()), "name": names})
    (directory / "numbers").mkdir()
    for part in range(2):
        pyarrow.parquet.write_table(
            table.slice(part * 5000, 5000), directory / "numbers" / f"part-{part}.parquet"
        )
    with open(directory / "numbers.csv", "w") as csv, open(directory / "numbers.json", "w") as json:
        csv.write("n,name\n")
        for n, name in zip(values, names):
            csv.write(f"{n},{name or ''}\n")
            json.write(f'{{"n": {n}, "name": {"null" if name is None else repr(name)}}}\n'.replace("'", '"'))
    return directory

"""TPC-H on the GPU: the answers of the CPU, whatever hands out the memory."""

import pytest
import tpch_data
from flight_sql import Client
from node import Node
from test_gpu_differential import ordered

SCALE = 0.01
QUERIES = tpch_data.queries()
ON_CPU = {"FilterExec", "ProjectionExec", "AggregateExec"}
# Filters, sums by group and without, joins, a subquery.
FEW = [1, 3, 6, 14, 15]
POOLS = ["ASYNC", "ARENA", "DEFAULT", "NONE"]
ALL_OF_ONE_AND_FEW_OF_OTHERS = [("ASYNC", number) for number in QUERIES] + [
    (pool, number) for pool in POOLS[1:] for number in FEW
]
in_each_pool = pytest.mark.parametrize("node", POOLS, indirect=True)
in_one_pool = pytest.mark.parametrize("node", POOLS[:1], indirect=True)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CREEL_BENCH_DATA", str(tmp_path_factory.mktemp("tpch")))
        return tpch_data.generate(SCALE)


@pytest.fixture(scope="module")
def node(request):
    """A node with the kind of pool that is its parameter."""
    with Node(f"gpu.memory.pool={request.param}", gpus=["h200:1"]) as node:
        node.pool = request.param
        yield node


@pytest.fixture(scope="module")
def connect(node, tables):
    """Connections with the tables, by gpu.mode."""
    clients = {mode: Client(node.socket) for mode in ("on", "off")}
    for mode, client in clients.items():
        assert client.set_options(**{"gpu.mode": mode, "gpu.min_rows": "0"}) == {}
        for table in tpch_data.TABLES:
            location = tables / f"{table}.parquet"
            client.sql(f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{location}'")
    yield clients
    for client in clients.values():
        client.close()


def plan(client: Client, sql: str) -> list[str]:
    """The lines of the physical plan, from the root down."""
    return dict(client.rows(f"EXPLAIN {sql}"))["physical_plan"].splitlines()


def operator(line: str) -> str:
    return line.strip().partition(":")[0]


@pytest.mark.parametrize(("node", "number"), ALL_OF_ONE_AND_FEW_OF_OTHERS, indirect=["node"])
def test_the_answer_of_the_cpu(connect, node, number):
    wanted, got = (connect[mode].sql(QUERIES[number]) for mode in ("off", "on"))
    assert got.schema == wanted.schema
    everything = range(wanted.num_columns)
    assert ordered(got, everything) == ordered(wanted, everything)
    assert wanted.num_rows > 0


@in_one_pool
@pytest.mark.parametrize("number", [1, 6])
def test_nothing_between_scan_and_sort_is_on_the_cpu(connect, node, number):
    operators = [operator(line) for line in plan(connect["on"], QUERIES[number])]
    if "SortExec" in operators:
        operators = operators[operators.index("SortExec") + 1 :]
    assert not ON_CPU & set(operators), operators
    assert {"GpuUploadExec", "GpuDownloadExec", "GpuHashAggregateExec"} <= set(operators)
    assert "GpuFilterExec" in operators, operators
    without = [operator(line) for line in plan(connect["off"], QUERIES[number])]
    assert ON_CPU & set(without) and not any(name.startswith("Gpu") for name in without)


@in_one_pool
@pytest.mark.parametrize(
    ("number", "kernels"),
    [
        (1, {"evaluate", "filter_count", "filter_rows", "hash_rows", "group_insert", "group_ids"}),
        (6, {"evaluate", "filter_count", "filter_rows"}),
    ],
)
def test_the_launch_log_names_the_kernels(connect, node, number, kernels):
    before = len(node.cuda_calls("cuLaunchKernel"))
    connect["off"].sql(QUERIES[number])
    assert len(node.cuda_calls("cuLaunchKernel")) == before
    connect["on"].sql(QUERIES[number])
    launched = {call["kernel"] for call in node.cuda_calls("cuLaunchKernel")[before:]}
    assert kernels <= launched, launched
    assert any(kernel.startswith("sum_") for kernel in launched), launched
    assert number != 1 or any(kernel.startswith("count_") for kernel in launched), launched


@in_each_pool
def test_each_pool_has_its_calls(node, connect):
    """The calls by which the driver knows who hands out the memory: see docs/gpu-memory.md."""
    connect["on"].sql(QUERIES[1])
    count = lambda *names: sum(len(node.cuda_calls(name)) for name in names)  # noqa: E731
    pools, direct = count("cuMemPoolCreate"), count("cuMemAlloc_v2")
    from_pool = count("cuMemAllocFromPoolAsync", "cuMemAllocAsync")
    pieces = node.executor()["gpu"]["pool"]["allocations"]
    assert pieces > 50
    if node.pool == "ASYNC":
        # One more, by which the pool takes its memory.
        assert pools == 1 and pieces <= from_pool <= pieces + 1 and direct == 0
    elif node.pool == "NONE":
        assert pools == from_pool == 0 and direct == count("cuMemFree_v2") == pieces
    else:
        # At once, or in a few steps.
        assert pools == from_pool == 0 and 1 <= direct <= 4 and count("cuMemFree_v2") == 0

"""The GPU's memory: pools and their sizes, what is shown of them, and what happens when it is short."""

import os
import re
import signal
import threading

import pyarrow
import pyarrow.parquet
import pytest
from flight_sql import Client
from node import eventually
from test_flight_sql import ERRORS

MIB = 1 << 20
# A Quadro RTX 6000 whose driver tells 24220.3125 MiB, of which 701 MiB are in use.
RTX6000 = """
[[gpu]]
model = "rtx6000"
memory = { total_mib = 24220.3125, reserved_mib = 0, used_mib = 701, context_mib = 0 }
"""
CLASSIC = ["gpu.memory.sizing=classic"]
POOL = "spark.rapids.memory.gpu.pool"
FRACTION = "spark.rapids.memory.gpu.allocFraction"
RESERVE = "spark.rapids.memory.gpu.reserve"
LARGER = "the pool's initial size of 23978.109375 MiB is more than "
LARGER_THAN_FREE = LARGER + "the 23519.3125 MiB that are free"
LARGER_THAN_MAXIMUM = LARGER + "its maximum without the reserve, {} MiB: it is lowered to that"
GROUPS = 15_000
AGGREGATE = "SELECT k, count(*) AS n, sum(v) AS s, min(v) AS low FROM '{}' GROUP BY k"


@pytest.fixture
def start_with_gpu(start, tmp_path):
    """Starts a node with the GPUs of a topology file."""

    def start_node(topology: str, *settings: str):
        file = tmp_path / "topology.toml"
        file.write_text(topology)
        return start("discovery.interval=1s", *settings, gpus=[str(file)])

    return start_node


@pytest.fixture(scope="module")
def many_groups(tmp_path_factory):
    """20,000 rows of 15,000 groups, with long keys."""
    file = tmp_path_factory.mktemp("groups") / "many.parquet"
    rows = range(20_000)
    keys = [f"a key that is a little longer than others {n % GROUPS}" for n in rows]
    table = pyarrow.table({"k": keys, "v": pyarrow.array(rows, pyarrow.int64())})
    pyarrow.parquet.write_table(table, file, row_group_size=5_000)
    return file


def on_gpu(client: Client, **settings: str) -> Client:
    options = {"gpu.mode": "on", "gpu.min_rows": "0"} | settings
    assert client.set_options(**options) == {}
    return client


def used(node) -> float:
    """What is in use on the GPU by NVML, in MiB."""
    return node.json("gpus")["gpus"][0]["memory"]["used"] / MIB


def of_pool(log: str) -> list[tuple[str, str]]:
    """Level and text of the log's lines on the pool's size."""
    found = re.findall(r" (INFO|WARN) \S+: (.*\bpool.* MiB.*?)(?: executor=.*)?$", log, re.MULTILINE)
    return [(level, text) for level, text in found if "slabs" not in text]


@pytest.mark.parametrize(
    ("settings", "size", "warnings"),
    [
        pytest.param(
            [f"{POOL}=ARENA"], ("ARENA", "21798.28125", "23196.3125"), [], id="a-the-defaults"
        ),
        pytest.param(
            [f"{POOL}=ARENA", f"{FRACTION}=0.9", f"{RESERVE}=1073741824"],
            ("ARENA", "21798.28125", "23196.3125"), [], id="a-the-same-given",
        ),
        pytest.param(
            [f"{POOL}=ARENA", f"{FRACTION}=0.99", f"{RESERVE}=1073741824"],
            ("ARENA", "23196.3125", "23196.3125"),
            [LARGER_THAN_FREE, LARGER_THAN_MAXIMUM.format("23196.3125")], id="b-more-at-first",
        ),
        pytest.param(
            [f"{POOL}=ARENA", f"{FRACTION}=0.99", f"{RESERVE}=2147483648"],
            ("ARENA", "22172.3125", "22172.3125"),
            [LARGER_THAN_FREE, LARGER_THAN_MAXIMUM.format("22172.3125")], id="c-more-in-reserve",
        ),
        pytest.param([f"{POOL}=NONE"], ("NONE", "21798.28125", "0.0"), [], id="d-no-pool"),
        pytest.param(
            [f"{POOL}=ARENA", "spark.rapids.memory.gpu.debug=STDOUT"],
            ("ARENA", "21798.28125", "23196.3125"), [], id="e-a-log",
        ),
    ],
)
def test_classic_sizes_to_the_last_digit(start_with_gpu, settings, size, warnings):
    """As they were observed with version 0.4 of the RAPIDS Accelerator, under its own names."""
    node = start_with_gpu(RTX6000, *CLASSIC, *settings)
    with Client(node.socket) as client:
        client.sql("SELECT 1")
        assert "GPU memory: 24220.3125 MiB, of which 23519.3125 MiB are free" in node.log()
        kind, initial, maximum = size
        line = f"memory pool {kind}, initial size = {initial} MiB, maximum size = {maximum} MiB"
        assert of_pool(node.log()) == [*(("WARN", text) for text in warnings), ("INFO", line)]
        # Arenas take their first size at once. NVML says so too, when the agent looks again.
        taken = 0 if kind == "NONE" else float(initial)
        eventually(lambda: used(node) == 701 + taken, 10)
        pool = node.json("gpus")["gpus"][0]["pool"]
        assert pool["kind"] == kind and pool["taken"] / MIB == taken


def test_current_size_is_what_is_free_without_the_reserve(start_with_gpu):
    node = start_with_gpu(RTX6000, "gpu.memory.pool=ARENA")
    with Client(node.socket) as client:
        client.sql("SELECT 1")
        assert of_pool(node.log()) == [("INFO", "memory pool ARENA, size = 22879.3125 MiB")]
        assert node.json("gpus")["gpus"][0]["pool"]["limit"] / MIB == 22879.3125


@pytest.mark.parametrize("where", ["STDOUT", "STDERR"])
def test_the_debug_log_is_one_of_rmm(start_with_gpu, many_groups, where):
    node = start_with_gpu(RTX6000, f"gpu.memory.debug={where}")
    with Client(node.socket) as client:
        on_gpu(client).sql(AGGREGATE.format(many_groups))
        assert eventually(lambda: node.executor()["gpu"]["pool"]["live"] == 0, 5)
    header = "Thread,Time,Action,Pointer,Size,Stream"
    assert node.log().count(header) == 1
    line = r"(\d+),(\d\d:\d\d:\d\d\.\d{6}),(allocate|free),(0x[0-9a-f]+),(\d+),(0x[0-9a-f]+)"
    entries = eventually(lambda: is_even(re.findall(line, node.log())), 5)
    assert len(entries) > 20
    held = {}
    for _, _, action, pointer, size, _ in entries:
        if action == "allocate":
            assert held.setdefault(pointer, size) == size, f"{pointer} is handed out twice"
        else:
            assert held.pop(pointer) == size
    assert held == {}
    assert len(entries) == 2 * node.executor()["gpu"]["pool"]["allocations"]


def is_even(entries: list) -> list:
    """The entries, once as many are of frees as of allocations."""
    frees = sum(action == "free" for _, _, action, *_ in entries)
    return entries if 2 * frees == len(entries) else []


def test_what_is_shown_while_a_query_runs(start_with_gpu, many_groups):
    node = start_with_gpu(RTX6000, "gpu.memory.pool=NONE", "gpu.concurrent_tasks=1")
    # Each launch takes its time, so that the query is seen.
    node.fault("--function", "cuLaunchKernel", "--delay", "50")
    with Client(node.socket) as client:
        thread = threading.Thread(
            target=on_gpu(client, **{"gpu.batch_bytes": "128 KiB"}).sql,
            args=[AGGREGATE.format(many_groups)],
        )
        thread.start()

        def at_work():
            gpu = node.executor()["gpu"]
            return gpu and gpu["pool"]["live"] > 100_000 and gpu["semaphore"]["holding"] and gpu

        gpu = eventually(at_work, 20)
        assert gpu["pool"]["kind"] == "NONE" and gpu["pool"]["peak"] >= gpu["pool"]["live"]
        assert gpu["semaphore"]["tasks"] == gpu["semaphore"]["holding"] == 1
        assert gpu["ledger"]["device"]["used"] > 0
        assert gpu["ledger"]["device"]["limit"] / MIB == 22879.3125
        # Without a pool, what a query has is what NVML counts.
        eventually(lambda: used(node) > 701, 10)
        table = node.creel("executors").stdout
        assert "NONE: " in table and "1 of 1 use it" in table
        node.fault("--clear")
        thread.join(30)
        assert not thread.is_alive()
        gpu = eventually(lambda: at_rest(node), 5)
        assert gpu["ledger"]["device"]["used"] == gpu["ledger"]["host"]["used"] == 0
        assert gpu["spill"]["batches"] == 0 and gpu["ledger"]["device"]["peak"] > 100_000


def at_rest(node):
    gpu = node.executor()["gpu"]
    return gpu if gpu["semaphore"]["holding"] == gpu["pool"]["live"] == 0 else None


@pytest.mark.parametrize("pool", ["ARENA", "ASYNC"])
def test_memory_is_free_again_after_the_executors_idle_end(start_with_gpu, pool):
    settings = ["executor.idle_timeout=1s", f"gpu.memory.pool={pool}"]
    node = start_with_gpu(RTX6000, *settings)
    # Where nobody attaches, the GPU stays empty.
    assert used(node) == 701
    with Client(node.socket) as client:
        on_gpu(client).sql("SELECT value % 7 AS k, sum(value) FROM generate_series(1, 1000) GROUP BY 1")
        if pool == "ARENA":
            eventually(lambda: used(node) == 701 + 22879.3125, 5)
    eventually(lambda: node.executors() == [] and used(node) == 701, 10)
    assert node.json("gpus")["gpus"][0]["pool"] is None


def small(mib: float) -> str:
    memory = f"total_mib = {mib}, reserved_mib = 0, used_mib = 0, context_mib = 0"
    return f'[[gpu]]\nmodel = "rtx6000"\nmemory = {{ {memory} }}\n'


SHORT_OF_MEMORY = [
    "gpu.memory.reserve=64 KiB", "gpu.memory.host_limit=256 MiB",
    "gpu.memory.pinned_pool_size=8 MiB", "gpu.memory.host_spill_size=512 KiB",
]


def groups(client: Client, file) -> list[tuple]:
    return sorted(client.rows(AGGREGATE.format(file)))


def same_on_both(client: Client, file, **settings: str) -> None:
    wanted = groups(on_gpu(client, **{"gpu.mode": "off"}), file)
    assert len(wanted) == GROUPS
    assert groups(on_gpu(client, **settings), file) == wanted


@pytest.mark.parametrize("pool", ["ARENA", "DEFAULT", "ASYNC", "NONE"])
def test_a_query_that_does_not_fit_spills(start_with_gpu, many_groups, pool):
    node = start_with_gpu(small(2), f"gpu.memory.pool={pool}", *SHORT_OF_MEMORY)
    with Client(node.socket) as client:
        same_on_both(client, many_groups, **{"gpu.batch_bytes": "128 KiB"})
        gpu = eventually(lambda: at_rest(node), 5)
        assert gpu["spill"]["to_host"] > 0 and gpu["spill"]["to_disk"] > 0, gpu
        assert gpu["spill"]["batches"] == gpu["spill"]["disk"] == gpu["spill"]["host"] == 0, gpu
        assert gpu["ledger"]["device"]["used"] == 0
        assert gpu["ledger"]["device"]["peak"] <= gpu["ledger"]["device"]["limit"] <= 2 * MIB


def test_a_step_that_does_not_fit_is_split(start_with_gpu, many_groups):
    node = start_with_gpu(small(1.5), "gpu.memory.pool=NONE", *SHORT_OF_MEMORY)
    with Client(node.socket) as client:
        settings = {"gpu.batch_bytes": "64 KiB", "sql.target_partitions": "1"}
        same_on_both(client, many_groups, **settings)
        gpu = eventually(lambda: at_rest(node), 5)
        assert gpu["ledger"]["splits"] > 0 and gpu["ledger"]["retries"] > 0, gpu


def test_out_of_room_at_start(start_with_gpu, many_groups):
    topology = RTX6000.replace("used_mib = 701", "used_mib = 20000")
    node = start_with_gpu(topology)
    with Client(node.socket) as client:
        on_gpu(client)
        reason = "the GPU has no room for a pool: 4220.3125 MiB are free"
        sql = "SELECT value % 7 AS k, sum(value) AS s FROM generate_series(1, 1000) GROUP BY 1"
        (told,) = [text for kind, text in client.rows(f"EXPLAIN {sql}") if kind == "gpu"]
        assert "nothing runs on the GPU" in told and reason in told
        assert "gpu.memory.min_alloc_fraction" in told
        assert len(client.rows(sql)) == 7
        assert f"the GPU can't be used: {reason}" in node.log()
        assert node.cuda_calls("cuLaunchKernel") == []
        on_gpu(client, **{"gpu.mode": "required"})
        with pytest.raises(ERRORS, match=re.escape(reason)):
            client.rows(sql)
        on_gpu(client)
        assert len(client.rows(sql)) == 7


def test_who_holds_the_rest_is_named(start_with_gpu):
    node = start_with_gpu(small(4000), "gpu.memory.pool=ARENA")
    with Client(node.socket) as client:
        client.sql("SELECT 1")
        pid = node.executor()["pid"]
    node.use("--gpu", "0", "--mib", "3500", "--pid", str(os.getpid()))
    # Another executor has to look at what is free, and the agent at who holds the rest.
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: used(node) == 3500, 10)
    with Client(node.socket) as client:
        client.sql("SELECT 1")
        assert re.search(rf"held by .*\(pid {os.getpid()}, 3500\.0 MiB\)", node.log())

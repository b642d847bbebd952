"""GPUs, drivers and executors that fail: what clients are told, and that they can go on."""

import os
import signal
import threading

import pyarrow
import pyarrow.parquet
import pytest
from flight_sql import Client
from node import eventually
from pyarrow import flight
from test_flight_sql import ERRORS

QUERY = "SELECT k, count(*) AS n, sum(v) AS s, max(t) AS t FROM '{}' WHERE v % 3 <> 1 GROUP BY k"
LOST_LIMIT = 3


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """20,000 rows: integers, strings, and some nulls."""
    path = tmp_path_factory.mktemp("failures") / "rows.parquet"
    rows = range(20_000)
    columns = {
        "k": [None if n % 50 == 0 else n % 300 for n in rows],
        "v": list(rows),
        "t": [f"text {n * 7 % 1000}" for n in rows],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=5_000)
    return path


def connect(node, **settings: str) -> Client:
    client = Client(node.socket)
    options = {"gpu.mode": "on", "gpu.min_rows": "0"} | settings
    assert client.set_options(**options) == {}
    return client


def answer(node, file, **settings: str) -> list[tuple]:
    with connect(node, **settings) as client:
        return sorted(client.rows(QUERY.format(file)), key=repr)


def launches(node) -> int:
    return len(node.cuda_calls("cuLaunchKernel"))


def executor_on_gpu(node) -> dict:
    (executor,) = [it for it in node.executors() if it["device"] != "cpu" and it["pid"]]
    return executor


FAULTS = {
    "illegal address": ["--function", "cuLaunchKernel", "--cuda-error", "ILLEGAL_ADDRESS"],
    "launch failed": ["--function", "cuLaunchKernel", "--cuda-error", "LAUNCH_FAILED"],
    "uncorrectable ECC error": ["--function", "cuMemcpyDtoHAsync_v2", "--cuda-error", "ECC_UNCORRECTABLE"],
    "lost": ["--gpu", "0", "--lost"],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", [1, 5])
def test_a_sticky_error(start, file, fault, call):
    node = start(gpus=["rtx6000:1"])
    wanted = answer(node, file, **{"gpu.mode": "off"})
    with connect(node) as client, connect(node) as bystander:
        pid = executor_on_gpu(node)["pid"]
        assert bystander.rows("SELECT 1") == [(1,)]
        node.fault(*FAULTS[fault], "--call", str(call))
        with pytest.raises(ERRORS) as error:
            client.rows(QUERY.format(file))
        text = str(error.value)
        assert "CUDA_ERROR" in text, text
        # The process is of no use any more, and ends by itself.
        eventually(lambda: not os.path.exists(f"/proc/{pid}"), 10)
        node.fault("--clear")
        # Whose connection was idle has another one now.
        assert bystander.rows("SELECT 2") == [(2,)]
    assert answer(node, file) == wanted
    assert executor_on_gpu(node)["pid"] != pid and executor_on_gpu(node)["restarts"] == 1
    assert "GPU" in executor_on_gpu(node)["last_error"]
    assert node.process.poll() is None


def test_queries_of_others_end_with_the_reason(start, file):
    node = start(gpus=["rtx6000:1"])
    with connect(node) as client, connect(node, **{"gpu.mode": "off"}) as other:
        outcome = []

        def read():
            try:
                outcome.append(other.rows("SELECT count(*) FROM generate_series(1, 1000000000000)"))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        eventually(node.queries, 10)
        node.fault("--function", "cuLaunchKernel", "--call", "3", "--cuda-error", "ILLEGAL_ADDRESS")
        with pytest.raises(ERRORS, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            client.rows(QUERY.format(file))
        thread.join(10)
    (error,) = outcome
    assert isinstance(error, flight.FlightUnavailableError), error
    assert "GPU failed" in str(error) and "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error)


def test_a_gpu_that_is_lost_again_and_again(start, file):
    node = start(gpus=["rtx6000:1"])
    node.fault("--function", "cuLaunchKernel", "--call", "2", "--cuda-error", "ILLEGAL_ADDRESS")
    for _ in range(LOST_LIMIT):
        with connect(node) as client:
            pid = executor_on_gpu(node)["pid"]
            with pytest.raises(ERRORS, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
                client.rows(QUERY.format(file))
            eventually(lambda: not os.path.exists(f"/proc/{pid}"), 10)
    (gpu,) = node.json("gpus")["gpus"]
    assert gpu["health"]["state"] == "unhealthy"
    (reason,) = gpu["health"]["reasons"]
    assert f"lost it {LOST_LIMIT} times" in reason and "CUDA_ERROR_ILLEGAL_ADDRESS" in reason
    report = node.creel("doctor", check=False)
    assert report.returncode == 1 and f"lost it {LOST_LIMIT} times" in report.stdout + report.stderr


def test_queries_go_on_where_a_gpu_is_unhealthy(start, file):
    node = start(gpus=["rtx6000:1"])
    wanted = answer(node, file, **{"gpu.mode": "off"})
    node.fault("--function", "cuLaunchKernel", "--call", "1", "--cuda-error", "ILLEGAL_ADDRESS")
    for _ in range(LOST_LIMIT):
        with pytest.raises(ERRORS):
            answer(node, file)
        eventually(lambda: not any(it["pid"] for it in node.executors()), 10)
    before = launches(node)
    assert answer(node, file) == wanted
    assert launches(node) == before


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuMemHostAlloc"])
def test_each_allocation_fails_once(start, file, function):
    """Without a pool each buffer is a call of the driver."""
    node = start("gpu.memory.pool=NONE", "executor.threads=1", gpus=["rtx6000:1"])
    wanted = answer(node, file, **{"gpu.mode": "off"})
    before = len(node.cuda_calls("cuMemAlloc_v2"))
    assert answer(node, file) == wanted
    calls = len(node.cuda_calls("cuMemAlloc_v2")) - before
    assert calls > 20
    for call in range(1, calls + 1) if function == "cuMemAlloc_v2" else [1, 2]:
        # Calls are counted anew.
        node.fault("--function", function, "--call", str(call), "--cuda-error", "OUT_OF_MEMORY")
        assert answer(node, file) == wanted, f"allocation {call} fails"
        node.fault("--clear")
    gpu = node.executor()["gpu"]
    assert gpu["pool"]["live"] == gpu["ledger"]["device"]["used"] == 0
    if function == "cuMemAlloc_v2":
        assert gpu["pool"]["failures"] > 0
    assert node.executor()["restarts"] == 0


@pytest.mark.parametrize("every", [2, 3])
def test_all_allocations_fail_from_one_on(start, file, every):
    """Without memory a query can't go on; it says so, and the next one can."""
    node = start("gpu.memory.pool=NONE", "gpu.memory.wait_timeout=2s", gpus=["rtx6000:1"])
    wanted = answer(node, file)
    node.fault(
        "--function", "cuMemAlloc_v2", "--call", str(every), "--onward", "--cuda-error", "OUT_OF_MEMORY"
    )
    with pytest.raises(ERRORS, match="(?i)memory|bytes"):
        answer(node, file)
    node.fault("--clear")
    assert answer(node, file) == wanted
    assert node.executor()["restarts"] == 0


def test_kill_9_of_an_executor_frees_its_memory(start, file):
    node = start("gpu.memory.pool=ARENA", "discovery.interval=1s", gpus=["rtx6000:1"])
    used = lambda: node.json("gpus")["gpus"][0]["memory"]["used"]  # noqa: E731
    empty = used()
    with connect(node) as client:
        client.rows(QUERY.format(file))
        eventually(lambda: used() > empty + (10 << 30), 5)
        os.kill(executor_on_gpu(node)["pid"], signal.SIGKILL)
        eventually(lambda: used() == empty, 5)


def told(node, sql: str) -> str:
    """What EXPLAIN says of the GPU."""
    with connect(node) as client:
        (text,) = [text for kind, text in client.rows(f"EXPLAIN {sql}") if kind == "gpu"]
        return text


def queries_run_on_the_cpu(node, file, reason: str):
    sql = QUERY.format(file)
    assert reason in told(node, sql), told(node, sql)
    assert launches(node) == 0
    assert answer(node, file) == answer(node, file, **{"gpu.mode": "off"})
    assert f"the GPU can't be used: {reason}" in node.log()
    with connect(node, **{"gpu.mode": "required"}) as client:
        with pytest.raises(ERRORS, match="gpu.mode is required"):
            client.rows(sql)


def test_no_cuda_driver(start, file):
    """NVML is there, libcuda isn't, as where only a part of the driver is mounted."""
    node = start(gpus=["rtx6000:1"])
    (node.directory / "gpu" / "lib" / "libcuda.so.1").unlink()
    queries_run_on_the_cpu(node, file, "no CUDA driver: libcuda.so.1 isn't found")


def start_with(start, tmp_path, topology: str):
    path = tmp_path / "topology.toml"
    path.write_text(topology)
    return start(gpus=[str(path)])


def test_too_old_a_driver(start, file, tmp_path):
    old = 'driver_version = "470.57.02"\ncuda_version = "11.4"\n[[gpu]]\nmodel = "t4"\n'
    node = start_with(start, tmp_path, old)
    queries_run_on_the_cpu(node, file, "the driver knows CUDA 11.4 at most, and 12.0 is needed")


def test_kernels_that_the_driver_does_not_take(start, file):
    node = start(gpus=["rtx6000:1"])
    node.fault("--function", "cuModuleLoadData", "--cuda-error", "UNSUPPORTED_PTX_VERSION")
    queries_run_on_the_cpu(node, file, "cuModuleLoadData")
    assert "222" in told(node, QUERY.format(file))


def test_a_driver_that_does_not_start(start, file):
    node = start(gpus=["rtx6000:1"])
    node.fault("--function", "cuInit", "--cuda-error", "SYSTEM_DRIVER_MISMATCH")
    queries_run_on_the_cpu(node, file, "cuInit failed")

"""Where a query runs, who decides it, and how that is told: gpu.mode, gpu.explain, gpu.min_rows."""

import re

import pyarrow
import pyarrow.parquet
import pytest
from flight_sql import Client
from node import Node
from test_flight_sql import ERRORS

ROWS = 20_000
GROUPED = "SELECT k, sum(v) AS s, count(*) AS n FROM '{}' WHERE v > 10 GROUP BY k ORDER BY k"
LIKE = "SELECT v + 1 AS w FROM '{}' WHERE t LIKE '%7%'"
GPU_OPERATORS = {"GpuUploadExec", "GpuFilterExec", "GpuHashAggregateExec", "GpuDownloadExec"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "rows.parquet"
    columns = {"k": [n % 10 for n in range(ROWS)], "v": list(range(ROWS)), "t": [str(n) for n in range(ROWS)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.fixture(scope="module")
def gpu(simulated_gpu_node):
    return simulated_gpu_node


@pytest.fixture
def client(gpu):
    """A connection that sends everything to the GPU."""
    with Client(gpu.socket) as client:
        yield set_options(client, **{"gpu.mode": "on", "gpu.min_rows": "0"})


def set_options(client: Client, **options: str) -> Client:
    assert client.set_options(**options) == {}
    return client


def explain(client: Client, sql: str, how: str = "EXPLAIN") -> dict[str, str]:
    """The answer to EXPLAIN, by kind."""
    return dict(client.rows(f"{how} {sql}"))


def operators(plan: str) -> set[str]:
    return set(re.findall(r"\b\w+Exec\b", plan))


def test_on(client, file):
    told = explain(client, GROUPED.format(file))
    assert GPU_OPERATORS <= operators(told["physical_plan"])
    # What isn't on the GPU, and why.
    assert told["gpu"] == "!SortExec: there is no GPU form of it"


def test_off(client, gpu, file):
    wanted = client.rows(GROUPED.format(file))
    set_options(client, **{"gpu.mode": "off"})
    before = len(gpu.cuda_calls("cuLaunchKernel"))
    told = explain(client, GROUPED.format(file))
    assert not any(name.startswith("Gpu") for name in operators(told["physical_plan"]))
    assert "gpu" not in told
    assert client.rows(GROUPED.format(file)) == wanted
    assert len(gpu.cuda_calls("cuLaunchKernel")) == before


def test_explain_only(client, gpu, file):
    set_options(client, **{"gpu.mode": "explain_only"})
    before = len(gpu.cuda_calls("cuLaunchKernel"))
    told = explain(client, GROUPED.format(file))
    assert not any(name.startswith("Gpu") for name in operators(told["physical_plan"]))
    assert told["gpu"].startswith("gpu.mode is explain_only")
    assert "\n*GpuFilterExec: " in told["gpu"] and "\n*GpuHashAggregateExec: " in told["gpu"]
    assert len(client.rows(GROUPED.format(file))) == 10
    assert len(gpu.cuda_calls("cuLaunchKernel")) == before


def test_explain_only_tells_without_a_gpu_too(node, file):
    with Client(node.socket) as client:
        set_options(client, **{"gpu.mode": "explain_only", "gpu.min_rows": "0"})
        assert "\n*GpuFilterExec: " in explain(client, GROUPED.format(file))["gpu"]


def test_required(client, gpu, file):
    set_options(client, **{"gpu.mode": "required", "gpu.min_rows": "1000000"})
    before = len(gpu.cuda_calls("cuLaunchKernel"))
    assert len(client.rows(GROUPED.format(file))) == 10
    assert len(gpu.cuda_calls("cuLaunchKernel")) > before
    with pytest.raises(ERRORS, match="gpu.mode is required.*FilterExec.*LIKE"):
        client.rows(LIKE.format(file))
    # EXPLAIN is never refused.
    assert "LIKE" in explain(client, LIKE.format(file))["gpu"]


def test_required_without_a_gpu(node, file):
    with Client(node.socket) as client:
        set_options(client, **{"gpu.mode": "required"})
        with pytest.raises(ERRORS, match="gpu.mode is required.*no GPU"):
            client.rows(GROUPED.format(file))


def test_small_inputs_stay_on_the_cpu(client, gpu, file):
    before = len(gpu.cuda_calls("cuLaunchKernel"))
    set_options(client, **{"gpu.min_rows": str(ROWS + 1)})
    told = explain(client, GROUPED.format(file))
    assert not any(name.startswith("Gpu") for name in operators(told["physical_plan"]))
    assert f"{ROWS} rows come in, and the GPU is for {ROWS + 1} or more (gpu.min_rows)" in told["gpu"]
    assert len(client.rows(GROUPED.format(file))) == 10
    assert len(gpu.cuda_calls("cuLaunchKernel")) == before
    set_options(client, **{"gpu.min_rows": str(ROWS)})
    assert "GpuFilterExec" in explain(client, GROUPED.format(file))["physical_plan"]


def test_what_is_told_by_gpu_explain(client, file):
    sql = GROUPED.format(file)
    set_options(client, **{"gpu.explain": "NONE"})
    assert "gpu" not in explain(client, sql)
    set_options(client, **{"gpu.explain": "ALL"})
    told = explain(client, sql)["gpu"].splitlines()
    assert any(line.startswith("*GpuFilterExec: v@") for line in told), told
    assert "!SortExec: there is no GPU form of it" in told


def test_the_log_tells_what_is_not_on_the_gpu(start, file):
    node = start(gpus=["t4:1"])
    with Client(node.socket) as client:
        set_options(client, **{"gpu.min_rows": "0"})
        client.rows(LIKE.format(file))
        line = r"INFO .*the query and the GPU: .*!FilterExec: .* LIKE %7% can't run on the GPU"
        assert re.search(line, node.log())


def test_an_expression_without_a_gpu_form_stays(client, file):
    told = explain(client, LIKE.format(file))
    plan = operators(told["physical_plan"])
    assert "FilterExec" in plan and "GpuProjectExec" in plan
    assert re.search(r"^!FilterExec: t@\d LIKE %7% can't run on the GPU: ", told["gpu"], re.MULTILINE)
    set_options(client, **{"gpu.mode": "off"})
    wanted = sorted(client.rows(LIKE.format(file)))
    set_options(client, **{"gpu.mode": "on"})
    assert sorted(client.rows(LIKE.format(file))) == wanted


def test_explain_analyze_has_metrics(client, file):
    plan = explain(client, GROUPED.format(file), "EXPLAIN ANALYZE")["Plan with Metrics"]
    lines = {line.strip().partition(":")[0].partition(",")[0]: line for line in plan.splitlines()}
    upload, download = lines["GpuUploadExec"], lines["GpuDownloadExec"]
    assert re.search(r"uploaded_bytes=[1-9]", upload), upload
    assert re.search(r"downloaded_bytes=[1-9]", download), download
    assert "semaphore_wait=" in download
    for name in ("GpuFilterExec", "GpuHashAggregateExec"):
        # Times of the device, by events.
        assert re.search(r"kernel_time=[1-9]", lines[name]), lines[name]
        assert "retries=0" in lines[name] and "splits=0" in lines[name]
        assert "unspilled_bytes=0" in lines[name]
    (rows,) = re.findall(r"output_rows=([\d.]+ ?K?)", lines["GpuFilterExec"])[:1]
    assert rows


@pytest.mark.parametrize("how", ["EXPLAIN FORMAT TREE", "EXPLAIN VERBOSE", "EXPLAIN FORMAT INDENT"])
def test_each_format_of_explain(client, file, how):
    rows = client.rows(f"{how} {GROUPED.format(file)}")
    assert rows[-1][0] == "gpu"
    assert any("GpuHashAggregateExec" in text for kind, text in rows if kind != "gpu")


def test_set_by_sql_and_by_the_command_line(gpu, file):
    sql = GROUPED.format(file)
    of = ("--set", "gpu.min_rows=0", "--set", "gpu.mode={}")
    for mode, is_on_gpu in (("on", True), ("off", False)):
        options = [word.format(mode) for word in of]
        plan = gpu.creel("explain", "-c", sql, *options).stdout
        assert ("GpuFilterExec" in plan) == is_on_gpu
        assert gpu.sql(sql, *options).count("\n") == 11
    with Client(gpu.socket) as client:
        client.sql("SET creel.gpu.min_rows = 0")
        client.sql("SET creel.gpu.mode = 'off'")
        assert "GpuFilterExec" not in explain(client, sql)["physical_plan"]
        client.sql("SET creel.gpu.mode = 'on'")
        assert "GpuFilterExec" in explain(client, sql)["physical_plan"]
        assert client.set_options(**{"gpu.mode": "sometimes"}) == {"gpu.mode": 2}
        assert client.set_options(**{"gpu.memory.pool": "NONE"}) == {"gpu.memory.pool": 1}


def test_a_gpu_per_socket(file):
    """A MIG slice is a device as any, and each GPU has its own socket."""
    with Node(gpus=["a100:1,mig=1x2g.10gb", "h200:1"]) as node:
        devices = []
        for socket in sorted((node.run_dir / "gpu").glob("*.sock")):
            with Client(socket) as client:
                set_options(client, **{"gpu.min_rows": "0"})
                assert len(client.rows(GROUPED.format(file))) == 10
            devices = {executor["device"] for executor in node.executors()}
        assert {device[:4] for device in devices} == {"MIG-", "GPU-"}
        assert len({call["pid"] for call in node.cuda_calls("cuLaunchKernel")}) == 2

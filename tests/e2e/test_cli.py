"""The command line: its answers, formats and exit codes."""

import csv
import io
import json
import os
import pty
import select
import signal
import subprocess
import time

import pyarrow
import pytest
from flight_sql import Client
from node import BINARIES, eventually

ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000000000)"


def test_status(node):
    status = node.json("status")
    assert status["schema"] == 1
    assert status["agent"]["pid"] == node.process.pid
    assert status["agent"]["ready"] is True
    assert status["agent"]["uptime_s"] >= 0
    assert {"gpus", "executors", "attachments", "leases", "queries"} <= status.keys()


def test_gpus_in_pci_order(gpu_node):
    a100, h200 = gpu_node.json("gpus")["gpus"]
    assert (a100["index"], h200["index"]) == (0, 1)
    assert "A100" in a100["name"] and "H200" in h200["name"]
    assert a100["uuid"].startswith("GPU-") and a100["uuid"] != h200["uuid"]
    assert a100["pci_bus_id"] < h200["pci_bus_id"]
    for gpu in (a100, h200):
        memory = gpu["memory"]
        assert memory["total"] > 30 << 30
        assert memory["used"] + memory["free"] <= memory["total"]
        assert gpu["driver"] and gpu["cuda"]
        assert gpu["health"] == {"state": "healthy", "reasons": []}
        assert gpu["lease"] is None
    assert a100["mig"]["enabled"] is True
    assert sorted(s["profile"] for s in a100["mig"]["slices"]) == ["1g.5gb", *3 * ["2g.10gb"]]
    assert all(s["uuid"].startswith("MIG-") for s in a100["mig"]["slices"])
    assert h200["mig"] == {"enabled": False, "slices": [], "waiting": None}
    assert gpu_node.json("status")["gpus"] == 2


def test_gpus_as_a_table(gpu_node):
    table = gpu_node.creel("gpus").stdout
    assert "A100" in table and "H200" in table and "2g.10gb" in table


def test_a_node_without_gpus_says_so(start):
    node = start(gpus=[]) if not os.path.exists("/dev/nvidia0") else pytest.skip("this node has GPUs")
    assert node.json("gpus") == {"schema": 1, "gpus": []}
    assert node.creel("gpus").returncode == 0


def test_executors_attachments_and_queries(start):
    node = start()
    assert node.executors() == []
    with Client(node.socket) as client:
        assert client.rows("SELECT 1 + 1") == [(2,)]
        executor = node.executor()
        assert executor["id"] == f"cpu-{os.getuid()}"
        assert executor["device"] == "cpu"
        assert executor["uid"] == os.getuid()
        assert executor["state"] == "running"
        assert executor["restarts"] == 0 and executor["last_error"] is None
        assert executor["memory"]["limit"] == 1 << 30
        assert os.path.basename(os.readlink(f"/proc/{executor['pid']}/exe")) == "creel-executor"
        (attachment,) = node.json("attachments")["attachments"]
        assert attachment["pid"] == os.getpid() and attachment["uid"] == os.getuid()
        assert attachment["executor"] == executor["id"]
        assert attachment["queries"] == 1 and attachment["bytes_sent"] > 0
        status = node.json("status")
        assert (status["executors"], status["attachments"], status["queries"]) == (1, 1, 0)
    eventually(lambda: node.json("attachments")["attachments"] == [], 2)
    assert node.json("leases") == {"schema": 1, "leases": []}


def test_an_idle_executor_ends(start):
    node = start("executor.idle_timeout=1s")
    assert node.sql("SELECT 1 AS x") == "x\n1\n"
    pid = node.executor()["pid"]
    eventually(lambda: not os.path.exists(f"/proc/{pid}"), 10)
    assert node.json("status")["executors"] == 0
    assert node.sql("SELECT 2 AS x") == "x\n2\n"


def test_cancel_a_query_by_its_id(start):
    node = start()
    with subprocess.Popen(
        [BINARIES / "creel", "sql", "-c", ENDLESS],
        env=node.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        (query,) = eventually(node.queries, 10)
        assert query["sql"] == ENDLESS and query["elapsed_ms"] >= 0
        assert query["executor"] == node.executor()["id"]
        node.creel("queries", "cancel", query["id"])
        _, error = running.communicate(timeout=10)
        assert running.returncode == 1
        assert "cancel" in error.lower(), error
    assert node.queries() == []
    gone = node.creel("queries", "cancel", query["id"], check=False)
    assert gone.returncode == 5 and query["id"] in gone.stderr


def test_ctrl_c_cancels_on_the_server(start):
    node = start()
    with subprocess.Popen(
        [BINARIES / "creel", "sql", "-c", ENDLESS],
        env=node.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        eventually(node.queries, 10)
        running.send_signal(signal.SIGINT)
        assert running.wait(5) == 130
    eventually(lambda: node.queries() == [], 1)
    eventually(lambda: node.executor()["memory"]["reserved"] == 0, 1)


def test_progress_on_a_terminal_and_only_there(start):
    node = start()
    reader, terminal = pty.openpty()
    with subprocess.Popen(
        [BINARIES / "creel", "sql", "-c", ENDLESS],
        env=node.environment | {"TERM": "xterm", "COLUMNS": "120"},
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as running:
        shown, end = b"", time.monotonic() + 15
        while b"rows" not in shown and time.monotonic() < end:
            if select.select([reader], [], [], 0.2)[0]:
                shown += os.read(reader, 4096)
        running.send_signal(signal.SIGINT)
        assert running.wait(5) == 130
        assert running.stdout.read() == b""
    os.close(terminal)
    os.close(reader)
    assert b"rows" in shown, shown
    piped = node.creel("sql", "-c", "SELECT count(*) FROM generate_series(1, 300000000)")
    assert piped.stderr == ""


VALUES = "SELECT * FROM (VALUES (1, 'a,b', 1.50), (2, NULL, 2.25), (3, 'say \"hi\"', NULL)) AS t(n, s, d)"


def test_csv(node):
    output = node.creel("sql", "-c", VALUES, "--format", "csv", text=False).stdout.decode()
    assert output.splitlines()[0] == "n,s,d"
    assert list(csv.reader(io.StringIO(output)))[1:] == [
        ["1", "a,b", "1.5"],
        ["2", "", "2.25"],
        ["3", 'say "hi"', ""],
    ]
    exact = "SELECT CAST(1.5 AS DECIMAL(20, 4)) AS d, TIMESTAMP '2024-02-29 12:34:56.789012' AS t, DATE '2024-02-29' AS day, '' AS empty"
    header, row = csv.reader(io.StringIO(node.sql(exact)))
    assert row[0] == "1.5000" and row[2] == "2024-02-29"
    assert row[1].replace("T", " ").startswith("2024-02-29 12:34:56.789012")


def test_json(node):
    rows = [json.loads(line) for line in node.creel("sql", "-c", VALUES, "--format", "json").stdout.splitlines()]
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert [row.get("s") for row in rows] == ["a,b", None, 'say "hi"']


def test_arrow(node):
    output = node.creel("sql", "-c", VALUES, "--format", "arrow", text=False).stdout
    table = pyarrow.ipc.open_stream(output).read_all()
    assert table.column_names == ["n", "s", "d"] and table.num_rows == 3


def test_table(node):
    output = node.creel("sql", "-c", VALUES).stdout
    assert "a,b" in output and "2.25" in output


def test_formats_write_what_others_can_read_or_nothing(node):
    decimals = "SELECT arrow_cast(-5, 'Decimal128(10, -2)') AS f, 1.50 AS d, 'NaN'::DOUBLE AS n"
    (row,) = node.creel("sql", "-c", decimals, "--format", "json").stdout.splitlines()
    assert json.loads(row) == {"f": 0, "d": 1.5, "n": None}
    beyond = "SELECT arrow_cast(2147483647, 'Date32') AS b"
    for name in ("table", "csv", "json"):
        done = node.creel("sql", "-c", beyond, "--format", name, check=False)
        assert done.returncode == 1 and "Date32" in done.stderr, done
        assert "2147483647" not in done.stdout and "ERROR" not in done.stdout
    assert node.sql("SELECT * FROM (VALUES (NULL), ('')) AS t(x)") == 'x\n""\n""\n'


def test_sql_from_a_file_and_from_standard_input(node, tmp_path):
    (tmp_path / "query.sql").write_text("SELECT 7 AS x;\n")
    arguments = ("--format", "csv")
    assert node.creel("sql", "-f", str(tmp_path / "query.sql"), *arguments).stdout == "x\n7\n"
    (tmp_path / "query.sql").write_text("SELECT 9 AS x", encoding="utf-8-sig")
    assert node.creel("sql", "-f", str(tmp_path / "query.sql"), *arguments).stdout == "x\n9\n"
    assert node.creel("sql", "-", *arguments, input="SELECT 8 AS x").stdout == "x\n8\n"


def test_settings_of_a_session(node):
    value = "SHOW datafusion.execution.batch_size"
    assert "100" in node.sql(value, "--set", "sql.batch_size=100")
    assert "100\n" not in node.sql(value)
    refused = node.creel("sql", "-c", "SELECT 1", "--set", "executor.memory=1t", check=False)
    assert refused.returncode != 0 and "executor.memory" in refused.stderr
    unknown = node.creel("sql", "-c", "SELECT 1", "--set", "sql.batch_sise=1", check=False)
    assert unknown.returncode != 0 and "sql.batch_size" in unknown.stderr


def test_explain(node):
    plan = node.creel("explain", "-c", "SELECT 1 AS one").stdout
    assert "Projection" in plan or "PlaceholderRow" in plan


def test_a_reader_that_has_enough(node):
    command = f"{BINARIES}/creel sql --format csv -c 'SELECT value FROM generate_series(1, 3000000)' | head -2"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=node.environment, capture_output=True, text=True, timeout=30
    )
    assert done.stdout == "value\n1\n" and done.stderr == "" and done.returncode == 0, done


def test_exit_codes(node, tmp_path):
    wrong = node.creel("sql", "-c", "SELEC 1", check=False)
    assert wrong.returncode == 1 and wrong.stderr.startswith("creel: ")
    assert node.creel("nosuch", check=False).returncode == 2
    assert node.creel("queries", "cancel", "nosuch", check=False).returncode == 5
    nobody = node.creel("--run-dir", str(tmp_path), "status", check=False)
    assert nobody.returncode == 3 and str(tmp_path) in nobody.stderr
    nobody = node.creel("--run-dir", str(tmp_path), "sql", "-c", "SELECT 1", check=False)
    assert nobody.returncode == 3 and str(tmp_path) in nobody.stderr


def test_config(node, tmp_path):
    file = tmp_path / "creel.toml"
    file.write_text('[executor]\nmemory = "2 GiB"\n')
    shown = node.creel("--config", str(file), "config", "get", "executor.memory").stdout
    assert shown.strip() == "2 GiB"
    assert node.creel("--config", str(file), "config", "check").returncode == 0
    listed = node.json("--config", str(file), "config", "list")
    assert listed["schema"] == 1 and "executor.memory" in json.dumps(listed)
    file.write_text('[executor]\nmemroy = "2 GiB"\n')
    wrong = node.creel("--config", str(file), "config", "check", check=False)
    assert wrong.returncode == 1
    assert f"{file}:2" in wrong.stderr + wrong.stdout and "executor.memory" in wrong.stderr + wrong.stdout


def test_a_wrong_settings_file_stops_the_start(node, tmp_path):
    file = tmp_path / "creel.toml"
    file.write_text("[executor]\nthreads = -1\n")
    done = subprocess.run(
        [BINARIES / "creeld", "--config", file, "--run-dir", tmp_path / "run"],
        capture_output=True, text=True, timeout=20,
    )
    assert done.returncode == 1 and "executor.threads" in done.stderr and ":2" in done.stderr


def test_version_and_completions(node):
    version = node.json("version")
    assert version["schema"] == 1 and "version" in json.dumps(version)
    assert "creel" in node.creel("completions", "bash").stdout


def test_doctor(node):
    report = node.json("doctor") if node.creel("doctor", check=False).returncode == 0 else None
    if report is None:
        done = node.creel("--json", "doctor", check=False)
        assert done.returncode == 1
        report = json.loads(done.stdout)
    assert report["schema"] == 1

"""Flight SQL by pyarrow.flight, with no code of Creel's."""

import threading
import time

import pyarrow
import pytest
from flight_sql import Client, any_of, field
from node import eventually
from pyarrow import flight
from test_cli import ENDLESS

ERRORS = (flight.FlightError, pyarrow.ArrowException, NotImplementedError)


def test_a_statement(client):
    table = client.sql("SELECT 1 AS n, 'x' AS s, CAST(1.5 AS DECIMAL(10, 2)) AS d, NULL AS nothing")
    assert table.to_pylist()[0] | {"d": str(table["d"][0])} == {
        "n": 1, "s": "x", "d": "1.50", "nothing": None,
    }


def test_a_result_of_many_batches(client):
    table = client.sql("SELECT value FROM generate_series(1, 1000000)")
    assert table.num_rows == 1_000_000
    assert sum(table["value"].to_pylist()) == 500_000_500_000


def test_the_schema_comes_before_the_rows(client):
    info = client.info("CommandStatementQuery", "SELECT 1 AS n, 'x' AS s")
    assert info.schema.names == ["n", "s"]
    assert client.read(info).schema.names == ["n", "s"]


def test_schema_without_running(client):
    descriptor = flight.FlightDescriptor.for_command(
        any_of("CommandStatementQuery", "SELECT 1 AS n")
    )
    assert client.client.get_schema(descriptor, client.options).schema.names == ["n"]


def test_an_error_leaves_the_connection(client):
    with pytest.raises(ERRORS, match="nosuch"):
        client.sql("SELECT nosuch FROM (SELECT 1 AS n)")
    with pytest.raises(ERRORS, match="nosuch_table"):
        client.sql("SELECT * FROM nosuch_table")
    with pytest.raises(ERRORS, match="(?i)divi"):
        client.sql("SELECT 1 / (value - 1) FROM generate_series(1, 3)")
    assert client.rows("SELECT 1") == [(1,)]


def test_a_session_is_its_connections_own(node, client):
    client.sql("CREATE VIEW v AS SELECT 42 AS answer")
    assert client.rows("SELECT * FROM v") == [(42,)]
    with Client(node.socket) as other, pytest.raises(ERRORS, match="v"):
        other.sql("SELECT * FROM v")


def test_prepared_statement(client):
    handle, result, parameters = client.prepare("SELECT $1 + 1 AS n, $2 AS s")
    assert result.names == ["n", "s"]
    assert len(parameters) == 2
    for n in (1, 41):
        batch = pyarrow.record_batch({"$1": [n], "$2": ["x"]})
        bound = client.bind(handle, batch)
        table = client.get("CommandPreparedStatementQuery", bound)
        assert table.to_pylist() == [{"n": n + 1, "s": "x"}]
        handle = bound
    client.action("ClosePreparedStatement", any_of("ActionClosePreparedStatementRequest", handle))
    with pytest.raises(ERRORS):
        client.get("CommandPreparedStatementQuery", handle)


def test_a_prepared_statement_without_parameters(client):
    handle, result, parameters = client.prepare("SELECT 5 AS n")
    assert result.names == ["n"] and len(parameters) == 0
    assert client.get("CommandPreparedStatementQuery", handle).to_pylist() == [{"n": 5}]


def test_a_mistake_shows_when_preparing(client):
    with pytest.raises(ERRORS, match="nosuch"):
        client.prepare("SELECT nosuch")


def test_catalogs_schemas_and_types(client):
    catalogs = client.get("CommandGetCatalogs")
    assert catalogs.column_names == ["catalog_name"] and catalogs.num_rows >= 1
    catalog = catalogs["catalog_name"][0].as_py()
    schemas = client.get("CommandGetDbSchemas", catalog)
    assert schemas.column_names == ["catalog_name", "db_schema_name"]
    assert "public" in schemas["db_schema_name"].to_pylist()
    types = client.get("CommandGetTableTypes")
    assert types.column_names == ["table_type"] and "VIEW" in types["table_type"].to_pylist()
    info = client.get("CommandGetXdbcTypeInfo")
    assert "type_name" in info.column_names and info.num_rows > 5


def test_tables(client):
    client.sql("CREATE VIEW yarn_view AS SELECT 1 AS n, 'x' AS s")
    found = client.get("CommandGetTables", None, None, "yarn%", None, True).to_pylist()
    assert [(row["table_name"], row["table_type"]) for row in found] == [("yarn_view", "VIEW")]
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(found[0]["table_schema"]))
    assert schema.names == ["n", "s"]
    plain = client.get("CommandGetTables", None, None, "yarn%")
    assert "table_schema" not in plain.column_names
    assert client.get("CommandGetTables", None, None, "nosuch%").num_rows == 0
    assert client.get("CommandGetTables", None, None, "yarn%", ["BASE TABLE"]).num_rows == 0


def test_sql_info(client):
    info = client.get("CommandGetSqlInfo")
    values = dict(zip(info["info_name"].to_pylist(), info["value"].to_pylist()))
    assert values[0] == "Creel"
    # FLIGHT_SQL_SERVER_READ_ONLY
    assert values[3] is True
    only = client.get("CommandGetSqlInfo", [0, 1])
    assert only["info_name"].to_pylist() == [0, 1]


def test_cancel(node, client):
    info = client.info("CommandStatementQuery", ENDLESS)
    outcome = []

    def read():
        try:
            outcome.append(client.read(info))
        except ERRORS as error:
            outcome.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: any(query["sql"] == ENDLESS for query in node.queries()), 10)
    assert client.cancel(info) in (1, 2)
    reader.join(5)
    assert not reader.is_alive()
    assert isinstance(outcome[0], Exception) and "cancel" in str(outcome[0]).lower()
    assert client.rows("SELECT 1") == [(1,)]


def test_a_deadline_ends_the_query(node, client):
    info = client.info("CommandStatementQuery", ENDLESS)
    with pytest.raises(ERRORS):
        options = flight.FlightCallOptions(timeout=0.5)
        for _ in client.client.do_get(info.endpoints[0].ticket, options):
            pass
    eventually(lambda: all(query["sql"] != ENDLESS for query in node.queries()), 2)


def test_session_options(client):
    assert client.set_options(**{"sql.batch_size": "123"}) == {}
    assert client.rows("SELECT value FROM information_schema.df_settings WHERE name = 'datafusion.execution.batch_size'") == [("123",)] \
        or "123" in str(client.rows("SHOW datafusion.execution.batch_size"))
    assert client.set_options(**{"nosuch.setting": "1"}) == {"nosuch.setting": 1}
    assert client.set_options(**{"executor.memory": "1 TiB"}) == {"executor.memory": 1}
    assert client.set_options(**{"sql.batch_size": "many"}) == {"sql.batch_size": 2}


def test_set_in_sql(client):
    client.sql("SET creel.sql.batch_size = 77")
    assert "77" in str(client.rows("SHOW datafusion.execution.batch_size"))


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("SET datafusion.runtime.memory_limit = '100G'", "datafusion.runtime.memory_limit"),
        ("SET datafusion.runtime.temp_directory = '/tmp'", "datafusion.runtime.temp_directory"),
        ("SET creel.executor.memory = '100 GiB'", "executor.memory"),
        ("COPY (SELECT 1) TO '/tmp/creel-e2e-never.parquet' STORED AS PARQUET", "COPY TO"),
        ("CREATE TABLE t AS SELECT 1", "CREATE TABLE"),
        ("CREATE TABLE t (n INT)", "CREATE TABLE"),
    ],
)
def test_refused_by_name(client, statement, name):
    with pytest.raises(ERRORS, match=f"{name}.*"):
        client.sql(statement)
    assert client.rows("SELECT 1") == [(1,)]


def test_insert_is_refused_by_name(client, data):
    client.sql(f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{data}/numbers/'")
    before = sorted((data / "numbers").iterdir())
    with pytest.raises(ERRORS, match="INSERT"):
        client.sql("INSERT INTO t VALUES (1, 'x')")
    assert sorted((data / "numbers").iterdir()) == before


def test_two_queries_of_one_connection_at_once(client):
    first = client.info("CommandStatementQuery", "SELECT value FROM generate_series(1, 5000000)")
    stream = client.client.do_get(first.endpoints[0].ticket, client.options)
    stream.read_chunk()
    assert client.rows("SELECT 2") == [(2,)]
    rest = sum(chunk.data.num_rows for chunk in stream)
    assert 0 < rest < 5_000_000


def test_unknown_commands_and_tickets(client):
    with pytest.raises(ERRORS):
        client.client.do_get(flight.Ticket(b"nonsense"), client.options).read_all()
    with pytest.raises(ERRORS):
        client.action("NoSuchAction", b"")
    descriptor = flight.FlightDescriptor.for_command(field(1, "type.googleapis.com/nonsense"))
    with pytest.raises(ERRORS):
        client.client.get_flight_info(descriptor, client.options)
    assert client.rows("SELECT 1") == [(1,)]


def test_a_slow_reader_holds_little(node, client):
    info = client.info("CommandStatementQuery", "SELECT value, repeat('x', 1000) AS x FROM generate_series(1, 2000000)")
    stream = client.client.do_get(info.endpoints[0].ticket, client.options)
    stream.read_chunk()
    time.sleep(1)
    pid = next(e["pid"] for e in node.executors())
    with open(f"/proc/{pid}/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    # The whole answer has 2 GB.
    assert resident < 700_000, f"{resident} KiB"
    stream.cancel()

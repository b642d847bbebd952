"""ADBC's Flight SQL driver, with no code of Creel's."""

import adbc_driver_flightsql.dbapi
import adbc_driver_manager
import pytest

OPTION = "adbc.flight.sql.session.option."


@pytest.fixture
def connection(node):
    uri = f"grpc+unix://{node.socket}"
    with adbc_driver_flightsql.dbapi.connect(uri, autocommit=True) as connection:
        yield connection


def test_a_statement(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 AS n, 'x' AS s")
        assert cursor.fetchall() == [(1, "x")]
        cursor.execute("SELECT value FROM generate_series(1, 100000)")
        assert cursor.fetch_arrow_table().num_rows == 100_000


def test_parameters(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT $1 + 1 AS n, $2 AS s", [41, "x"])
        assert cursor.fetchall() == [(42, "x")]


def test_metadata(connection):
    with connection.cursor() as cursor:
        cursor.execute("CREATE VIEW adbc_view AS SELECT 1 AS n")
        cursor.fetchall()
    assert connection.adbc_get_info()["vendor_name"] == "Creel"
    assert "VIEW" in connection.adbc_get_table_types()
    schema = connection.adbc_get_table_schema("adbc_view")
    assert schema.names == ["n"]
    objects = connection.adbc_get_objects(depth="tables", table_name_filter="adbc%").read_all()
    assert "adbc_view" in str(objects.to_pylist())


def test_session_options(connection):
    connection.adbc_connection.set_options(**{OPTION + "sql.batch_size": "99"})
    with connection.cursor() as cursor:
        cursor.execute("SHOW datafusion.execution.batch_size")
        assert "99" in str(cursor.fetchall())
    with pytest.raises(adbc_driver_manager.Error):
        connection.adbc_connection.set_options(**{OPTION + "executor.memory": "1 TiB"})


def test_errors(connection):
    with connection.cursor() as cursor:
        with pytest.raises(adbc_driver_manager.Error, match="nosuch"):
            cursor.execute("SELECT nosuch")
        with pytest.raises(adbc_driver_manager.Error, match="COPY TO"):
            cursor.execute("COPY (SELECT 1) TO '/tmp/creel-e2e-never.csv'")
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]

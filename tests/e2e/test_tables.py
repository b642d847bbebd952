"""Tables: by path, by pattern, external, as views; and files that are not what they should be."""

import os

import pyarrow
import pyarrow.parquet
import pytest
from flight_sql import Client
from test_flight_sql import ERRORS

COUNT = [(10_000, 49_995_000, 100)]


def count_of(table: str) -> str:
    return f"SELECT count(*), sum(n), count(*) - count(name) FROM {table}"


@pytest.mark.parametrize(
    "path", ["numbers/*.parquet", "numbers/part-?.parquet", "numbers/", "numbers.csv", "numbers.json"]
)
def test_by_path(client, data, path):
    assert client.rows(count_of(f"'{data}/{path}'")) == COUNT


def test_one_file(client, data):
    assert client.rows(f"SELECT min(n), max(n) FROM '{data}/numbers/part-1.parquet'") == [(5000, 9999)]


def test_a_relative_path_is_below_the_clients_working_directory(node, data):
    done = node.sql("SELECT count(*) AS n FROM 'numbers/*.parquet'", cwd=data)
    assert done == "n\n10000\n"
    elsewhere = node.creel("sql", "-c", "SELECT count(*) FROM 'numbers.csv'", cwd="/", check=False)
    assert elsewhere.returncode == 1 and "/numbers.csv" in elsewhere.stderr


def test_external_tables_and_views(client, data):
    client.sql(f"CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{data}/numbers/'")
    assert client.rows(count_of("t")) == COUNT
    client.sql("CREATE VIEW evens AS SELECT n FROM t WHERE n % 2 = 0")
    assert client.rows("SELECT count(*) FROM evens") == [(5000,)]
    client.sql("DROP VIEW evens")
    client.sql("DROP TABLE t")
    with pytest.raises(ERRORS, match="t"):
        client.sql("SELECT * FROM t")
    client.sql(
        f"CREATE EXTERNAL TABLE c (n BIGINT, name VARCHAR) STORED AS CSV LOCATION '{data}/numbers.csv' OPTIONS ('format.has_header' 'true')"
    )
    assert client.rows("SELECT max(n) FROM c") == [(9999,)]


def test_no_such_file(client, data):
    with pytest.raises(ERRORS, match=r"nosuch\.parquet"):
        client.sql(f"SELECT * FROM '{data}/nosuch.parquet'")
    with pytest.raises(ERRORS, match=r"nosuch-\*\.parquet"):
        client.sql(f"SELECT * FROM '{data}/nosuch-*.parquet'")
    assert client.rows("SELECT 1") == [(1,)]


@pytest.mark.parametrize("keep", [0, 3, 100, -20])
def test_a_truncated_file(client, data, tmp_path, keep):
    whole = (data / "numbers" / "part-0.parquet").read_bytes()
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(whole[:keep])
    with pytest.raises(ERRORS, match=r"broken\.parquet"):
        client.sql(f"SELECT sum(n) FROM '{broken}'")
    assert client.rows("SELECT 1") == [(1,)]


def test_damage_in_the_middle(client, data, tmp_path):
    content = bytearray((data / "numbers" / "part-0.parquet").read_bytes())
    content[100:2000] = os.urandom(1900)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(content)
    with pytest.raises(ERRORS, match=r"broken\.parquet"):
        client.sql(f"SELECT sum(n), max(name) FROM '{broken}'")
    assert client.rows("SELECT 1") == [(1,)]


def test_a_directory_for_a_file(client, tmp_path):
    directory = tmp_path / "dir.parquet"
    directory.mkdir()
    with pytest.raises(ERRORS, match=r"dir\.parquet"):
        client.sql(f"SELECT * FROM '{directory}'")
    assert client.rows("SELECT 1") == [(1,)]


def test_a_missing_column(client, data):
    with pytest.raises(ERRORS, match="nosuch"):
        client.sql(f"SELECT nosuch FROM '{data}/numbers/part-0.parquet'")
    assert client.rows("SELECT 1") == [(1,)]


def test_files_that_do_not_fit_together(client, data, tmp_path):
    (tmp_path / "a.parquet").write_bytes((data / "numbers" / "part-0.parquet").read_bytes())
    pyarrow.parquet.write_table(pyarrow.table({"n": ["text"]}), tmp_path / "b.parquet")
    with pytest.raises(ERRORS) as caught:
        client.sql(f"SELECT sum(n) FROM '{tmp_path}/*.parquet'")
    assert "n" in str(caught.value)
    assert client.rows("SELECT 1") == [(1,)]


def test_a_file_that_changes_is_read_anew(node, tmp_path):
    file = tmp_path / "x.csv"
    with Client(node.socket) as client:
        file.write_text("n\n1\n")
        assert client.rows(f"SELECT sum(n) FROM '{file}'") == [(1,)]
        file.write_text("n\n1\n2\n3\n")
        assert client.rows(f"SELECT sum(n) FROM '{file}'") == [(6,)]

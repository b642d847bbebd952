"""The engines that are compared: each answers SQL over the same Parquet files as an Arrow table.

`another()` is a second connection to the same engine, for another thread.
"""

import os
from pathlib import Path

import pyarrow


class DuckDb:
    """DuckDB, in this process."""

    def __init__(self, tables: dict[str, Path]):
        import duckdb

        self.connection = duckdb.connect()
        for name, path in tables.items():
            self.connection.execute(f"CREATE VIEW {name} AS FROM read_parquet('{path}')")

    def another(self) -> "DuckDb":
        other = object.__new__(DuckDb)
        other.connection = self.connection.cursor()
        return other

    def run(self, sql: str) -> pyarrow.Table:
        return self.connection.sql(sql).to_arrow_table()


class Polars:
    """Polars' lazy engine under its SQL, in this process."""

    def __init__(self, tables: dict[str, Path]):
        import polars

        self.context = polars.SQLContext(
            {name: polars.scan_parquet(path) for name, path in tables.items()}
        )

    def another(self) -> "Polars":
        return self

    def run(self, sql: str) -> pyarrow.Table:
        return self.context.execute(sql).collect().to_arrow()


class DataFusion:
    """The datafusion wheel, in this process."""

    def __init__(self, tables: dict[str, Path]):
        import datafusion

        self.context = datafusion.SessionContext()
        for name, path in tables.items():
            self.context.register_parquet(name, str(path))

    def another(self) -> "DataFusion":
        return self

    def run(self, sql: str) -> pyarrow.Table:
        return self.context.sql(sql).to_arrow_table()


class Creel:
    """The node of `scripts/run`, over its socket."""

    def __init__(self, tables: dict[str, Path]):
        from pyarrow import flight

        self.flight = flight
        self.tables = tables
        self.client = flight.FlightClient(
            f"grpc+unix://{os.environ['CREEL_RUN_DIR']}/creel.sock",
            generic_options=[("grpc.default_authority", "localhost")],
        )
        for name, path in tables.items():
            self.run(f"CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{path}'")

    def another(self) -> "Creel":
        return Creel(self.tables)

    def run(self, sql: str) -> pyarrow.Table:
        command = message(1, sql.encode())
        url = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
        descriptor = self.flight.FlightDescriptor.for_command(message(1, url) + message(2, command))
        info = self.client.get_flight_info(descriptor)
        streams = [self.client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
        return pyarrow.concat_tables(streams)


def message(field: int, value: bytes) -> bytes:
    """A length-delimited field of a Protocol Buffers message."""
    length, size = bytearray(), len(value)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes([field << 3 | 2]) + bytes(length) + value


ENGINES = {"duckdb": DuckDb, "polars": Polars, "datafusion": DataFusion, "creel": Creel}

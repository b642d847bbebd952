"""The GPU against the CPU: random queries of random tables must have the same answers on both.

A case that fails is told with its number, and runs alone by `--case NUMBER`; its table is made anew
from the number. What was found once stands below in NAMED.
"""

import re

import pyarrow
import pytest
from flight_sql import Client
from gpu_cases import Case, case
from test_flight_sql import ERRORS

CASES = 1000
LONG_CASES = 20_000
# Of the cases that have an answer, so many parts in a hundred must have a part on the GPU.
ON_GPU_PERCENT = 80
# More than this share of queries that can't even be planned would be a mistake of the generator.
UNPLANNED_PERCENT = 5
# Relative, for each row: sums of floats depend on the order of their terms.
FLOAT_TOLERANCE = 1e-12
SHOWN_FAILURES = 5

# What differed once: the columns of a table, and a query of it.
NAMED: dict[str, tuple[dict[str, pyarrow.Array], str]] = {
    "the least integer by minus one": (
        {"a": pyarrow.array([-(1 << 63), 4]), "b": pyarrow.array([-1, 2])}, "SELECT a / b AS q FROM {}"
    ),
    "a zero that is negative, as a key": (
        {"a": pyarrow.array([-0.0, 0.0, 1.0])}, "SELECT a, count(*) AS n FROM {} GROUP BY a"
    ),
    "the least and the largest of negative zeros": (
        {"a": pyarrow.array([-0.0, -0.0])}, "SELECT min(a) AS low, max(a) AS high FROM {}"
    ),
}


class Sides:
    """Connections to one executor: one computes on the CPU, the others on the GPU, with all rows in
    one batch, and in many."""

    def __init__(self, socket):
        self.cpu = Client(socket)
        assert self.cpu.set_options(**{"gpu.mode": "off"}) == {}
        self.gpus = []
        for size in ("512 MiB", "4 KiB"):
            self.gpus.append(client := Client(socket))
            options = {"gpu.min_rows": "0", "gpu.explain": "NONE", "gpu.batch_bytes": size}
            assert client.set_options(**options) == {}

    def gpu(self, query: Case) -> Client:
        return self.gpus[query.number % len(self.gpus)]

    def is_on_gpu(self, query: Case) -> bool:
        plans = self.gpu(query).rows(f"EXPLAIN {query.sql}")
        return any("GpuUploadExec" in plan for _, plan in plans)

    def difference(self, query: Case) -> str | None:
        """How the answers differ."""
        wanted, got = outcome(self.cpu, query.sql), outcome(self.gpu(query), query.sql)
        if isinstance(wanted, Exception) or isinstance(got, Exception):
            return different_failures(wanted, got, query.failures)
        return different_tables(wanted, got, query)

    def close(self):
        for client in (self.cpu, *self.gpus):
            client.close()


@pytest.fixture(scope="module")
def sides(simulated_gpu_node):
    sides = Sides(simulated_gpu_node.socket)
    yield sides
    sides.close()


def outcome(client: Client, sql: str):
    try:
        return client.sql(sql)
    except ERRORS as error:
        return error


def different_failures(wanted, got, failures: int) -> str | None:
    if not isinstance(got, Exception):
        return f"the CPU fails: {wanted}\nthe GPU answers: {got.slice(0, 5).to_pydict()}"
    if not isinstance(wanted, Exception):
        return f"the GPU fails: {got}\nthe CPU answers: {wanted.slice(0, 5).to_pydict()}"
    # Where several operations can fail, either may be the first.
    if failures <= 1 and kind(wanted) != kind(got):
        return f"the CPU fails: {wanted}\nthe GPU fails: {got}"
    return None


def kind(error: Exception) -> str:
    """What kind of failure it is."""
    text = str(error).lower()
    if "divide by zero" in text:
        return "division by zero"
    if re.search("overflow|cast|too large|out of range|precision|convert", text):
        return "range"
    return text


def different_tables(wanted: pyarrow.Table, got: pyarrow.Table, query: Case) -> str | None:
    if wanted.schema != got.schema:
        return f"the CPU's schema: {wanted.schema}\nthe GPU's: {got.schema}"
    if wanted.num_rows != got.num_rows:
        return f"the CPU has {wanted.num_rows} rows, the GPU {got.num_rows}:\n{shown(wanted, got)}"
    exact = [i for i in range(wanted.num_columns) if i not in query.rough]
    for a, b in zip(ordered(wanted, exact, query.rough), ordered(got, exact, query.rough)):
        for i, (x, y) in enumerate(zip(a, b)):
            if repr(x) != repr(y) and not (i in query.rough and is_close(x, y, query.rows)):
                return f"the CPU has {wanted.column_names[i]} = {x!r}, the GPU {y!r}, in the row {a!r}"
    return None


def shown(*tables: pyarrow.Table) -> str:
    return "\n".join(str(ordered(table, range(table.num_columns))[:10]) for table in tables)


def ordered(table: pyarrow.Table, keys, rough=frozenset()) -> list[tuple]:
    """Rows in the order of the columns at these places, with values that can be compared."""
    columns = [comparable(column, i in rough) for i, column in enumerate(table.columns)]
    return sorted(zip(*columns), key=lambda row: [repr(row[i]) for i in keys])


def comparable(column: pyarrow.ChunkedArray, is_rough: bool) -> list:
    """Dates and times by their numbers, which Python's don't reach; floats by their bits, but for
    NaN, and unless they are rough."""
    data_type = column.type
    if pyarrow.types.is_timestamp(data_type):
        return column.cast(pyarrow.int64()).to_pylist()
    if pyarrow.types.is_date32(data_type):
        return column.cast(pyarrow.int32()).to_pylist()
    if not pyarrow.types.is_floating(data_type):
        return column.to_pylist()
    values = column.to_pylist()
    is_exact = lambda value: value is not None and value == value  # noqa: E731
    return values if is_rough else [value.hex() if is_exact(value) else value for value in values]


def is_close(x, y, rows: int) -> bool:
    if not (isinstance(x, float) and isinstance(y, float)):
        return False
    if x != x or y != y:
        return x != x and y != y
    return abs(x - y) <= FLOAT_TOLERANCE * max(rows, 1) * max(abs(x), abs(y))


def test_random_cases(sides, tmp_path, pytestconfig):
    only = pytestconfig.getoption("--case")
    count = LONG_CASES if pytestconfig.getoption("--long") else CASES
    failed, planned, on_gpu = [], 0, 0
    numbers = range(count) if only is None else [only]
    for number in numbers:
        query = case(number, tmp_path)
        try:
            on_gpu += sides.is_on_gpu(query)
        except ERRORS as error:
            if only is not None:
                raise
            if different := different_failures(error, outcome(sides.cpu, query.sql), 0):
                failed.append(f"case {number}: EXPLAIN fails\n{query.sql}\n{different}")
            continue
        planned += 1
        if different := sides.difference(query):
            failed.append(f"case {number}:\n{query.sql}\n{different}")
    told = "\n\n".join(failed[:SHOWN_FAILURES])
    assert not failed, f"{len(failed)} of {len(numbers)} cases differ:\n{told}"
    assert planned * 100 >= len(numbers) * (100 - UNPLANNED_PERCENT), f"{planned} were planned"
    if only is None:
        assert on_gpu * 100 >= planned * ON_GPU_PERCENT, f"{on_gpu} of {planned} are on the GPU"


@pytest.mark.parametrize("name", NAMED)
def test_named_case(sides, tmp_path, name):
    columns, sql = NAMED[name]
    table, file = pyarrow.table(columns), tmp_path / "t.arrow"
    with pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    for number in range(len(sides.gpus)):
        query = Case(number, sql.format(f"'{file}'"), table.num_rows, failures=1)
        assert sides.is_on_gpu(query)
        assert sides.difference(query) is None

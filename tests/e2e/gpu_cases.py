"""Random tables, and random queries of them that the GPU takes.

A case is a number: the same number is the same query of the same tables. What can fail, as a
division or a narrowing cast, stands only where both sides evaluate it for the same rows: not below
AND, OR, CASE, COALESCE or FILTER.
"""

import datetime
import decimal
import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet

CASES_OF_A_TABLE = 10
# Bytes of a file that is not split.
ONE_PART = 1 << 20
ROWS = [0, 1, 31, 33, 100, 100, 300, 300, 511, 513, 1025, 1500, 3000]
EPOCH = datetime.date(1970, 1, 1)
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
ARROW_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
PARTS = [
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "DOW", "ISODOW", "HOUR", "MINUTE", "SECOND",
    "MILLISECOND", "MICROSECOND",
]
SPECIAL = [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf")]
WORDS = [
    "", "a", "ab", "abc", "abd", "B", "Zebra", "zebra", "été", "日本", "a longer string than twelve",
    "a longer string than thirteen", "x" * 300,
]


@dataclass
class Column:
    """A column of a table, and how its values may be used."""

    name: str
    type: pyarrow.DataType
    # boolean, integer, real, decimal, date, timestamp or string.
    family: str
    # Small enough that sums, differences and conversions of values stay in range, and of floats
    # exact in any order.
    is_tame: bool = True


@dataclass
class Table:
    """A table: its columns, and the names that it has in FROM."""

    columns: list[Column]
    # Files of one partition, whose rows have an order.
    files: list[str]
    # Several files.
    directory: str
    rows: int


@dataclass
class Case:
    """A query; `rough` are the columns of its answer whose last digits depend on the order of rows."""

    number: int
    sql: str
    rows: int
    failures: int
    rough: set[int] = field(default_factory=set)


def case(number: int, directory: Path) -> Case:
    """The case of that number; its table is written where it is not there yet."""
    table = write(number // CASES_OF_A_TABLE, directory)
    return Queries(random.Random(f"query {number}"), table).case(number)


# Tables


def numbers(rng: random.Random, low: int, high: int, is_tame: bool):
    """A value of an integer type."""
    style = rng.choice(["few", "even", "skewed"])

    def value() -> int:
        if not is_tame and rng.random() < 0.1:
            return rng.choice([low, low + 1, -1, 0, 1, high - 1, high])
        if style == "few":
            return rng.randint(-3, 3)
        if style == "skewed":
            return 0 if rng.random() < 0.8 else rng.randint(max(low, -100), min(high, 100))
        return rng.randint(max(low, -100), min(high, 100)) if is_tame else rng.randint(low, high)

    return value


def column(rng: random.Random, name: str):
    """A column, and what gives its values."""
    kind = rng.choice(
        "boolean int8 int16 int32 int64 int64 float32 float64 float64 date timestamp timestamp "
        "decimal decimal decimal64 string string dictionary".split()
    )
    is_tame = rng.random() < 0.7
    if kind == "boolean":
        chance = rng.choice([0.1, 0.5, 1.0])
        return Column(name, pyarrow.bool_(), "boolean"), lambda: rng.random() < chance
    if kind.startswith("int"):
        bits = int(kind[3:])
        value = numbers(rng, -(1 << bits - 1), (1 << bits - 1) - 1, is_tame)
        return Column(name, getattr(pyarrow, kind)(), "integer", is_tame), value
    if kind.startswith("float"):
        # Sums of quarters are exact in any order.
        if is_tame:
            value = lambda: rng.randint(-4000, 4000) / 4  # noqa: E731
        else:
            value = lambda: rng.choice(SPECIAL)  # noqa: E731
        return Column(name, getattr(pyarrow, kind)(), "real", is_tame), value
    if kind == "date":
        days = (-20_000, 40_000) if is_tame else (-700_000, 2_900_000)
        return Column(name, pyarrow.date32(), "date", is_tame), lambda: rng.randint(*days)
    if kind == "timestamp":
        unit = rng.choice(list(UNITS))
        zone = rng.choice([None, None, "UTC", "+02:00"])
        column = Column(name, pyarrow.timestamp(unit, zone), "timestamp", is_tame)
        if not is_tame:
            # Parquet has no seconds.
            most = ((1 << 63) - 1) // (1000 if unit == "s" else 1)
            return column, numbers(rng, -most, most, False)
        step = rng.choice([1, UNITS[unit] * 86_400])
        least, most = -2_000_000_000 * UNITS[unit] // step, 4_000_000_000 * UNITS[unit] // step
        return column, lambda: rng.randint(least, most) * step
    if kind.startswith("decimal"):
        precision = rng.choice([5, 10, 18] if kind == "decimal64" else [7, 15, 20, 38])
        scale = rng.choice([0, 2, min(precision, 6)])
        # Products of two and quotients have to fit in 38 digits.
        is_tame = precision < 18
        limit = 10 ** (min(precision, 5) if is_tame else precision) - 1
        value = numbers(rng, -limit, limit, False)
        data_type = pyarrow.decimal64 if kind == "decimal64" else pyarrow.decimal128
        column = Column(name, data_type(precision, scale), "decimal", is_tame)
        return column, lambda: decimal.Decimal(value()).scaleb(-scale, decimal.Context(prec=60))
    if kind == "string":
        words = WORDS if rng.random() < 0.5 else [f"key {i}" for i in range(rng.choice([2, 50, 5000]))]
        data_type = rng.choice([pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()])
        return Column(name, data_type, "string"), lambda: rng.choice(words)
    index = rng.choice([pyarrow.int8(), pyarrow.int16(), pyarrow.int32()])
    return Column(name, pyarrow.dictionary(index, pyarrow.string()), "string"), lambda: rng.choice(WORDS)


def array(rng: random.Random, column: Column, value, rows: int) -> pyarrow.Array:
    nulls = rng.choice([0, 0, 0.2, 0.2, 0.8, 1 if rng.random() < 0.3 else 0.5])
    values = [None if rng.random() < nulls else value() for _ in range(rows)]
    data_type = column.type
    if column.family == "timestamp":
        return pyarrow.array(values, pyarrow.int64()).cast(data_type)
    if column.family == "date":
        return pyarrow.array(values, pyarrow.int32()).cast(data_type)
    if pyarrow.types.is_dictionary(data_type):
        return pyarrow.array(values, pyarrow.string()).dictionary_encode().cast(data_type)
    return pyarrow.array(values, data_type)


def pieces(rng: random.Random, rows: int) -> list[int]:
    """Lengths of odd sizes that are so many rows together."""
    lengths = []
    while rows > 0 and len(lengths) < 12:
        lengths.append(min(rows, rng.choice([1, 3, 64, 333, 1000, rows])))
        rows -= lengths[-1]
    return [*lengths, rows] if rows else lengths


def write(number: int, directory: Path) -> Table:
    """The table of that number, as Arrow and as Parquet files."""
    rng = random.Random(f"table {number}")
    rows = rng.choice(ROWS)
    made = [column(rng, f"c{i}") for i in range(rng.randint(5, 12))]
    # Something for every query.
    made.append((Column("k", pyarrow.int32(), "integer"), numbers(rng, 0, 9, True)))
    columns = [it for it, _ in made]
    arrow, parquet, several = (
        directory / f"t{number}.arrow", directory / f"t{number}.parquet", directory / f"t{number}"
    )
    table = Table(columns, [str(arrow), str(parquet)], f"{several}/", rows)
    if several.exists():
        return table
    content = pyarrow.table({it.name: array(rng, it, value, rows) for it, value in made})
    content = content.unify_dictionaries()
    batches, begin = [], 0
    for length in pieces(rng, rows):
        batches += content.slice(begin, length).combine_chunks().to_batches()
        begin += length
    with pyarrow.ipc.new_file(arrow, content.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    groups = max(1, rng.choice([100, 1000, rows]))
    pyarrow.parquet.write_table(content, parquet, row_group_size=groups, compression="none")
    several.mkdir()
    middle = rng.randint(0, rows)
    for part, half in enumerate([content.slice(0, middle), content.slice(middle)]):
        pyarrow.parquet.write_table(half, several / f"{part}.parquet", compression="none")
    return table


# Queries


class Queries:
    """Random queries of a table."""

    def __init__(self, rng: random.Random, table: Table):
        self.rng = rng
        self.table = table
        # Whether what is built may fail.
        self.may_fail = False
        self.failures = 0
        self.size = max(Path(file).stat().st_size for file in table.files)

    def case(self, number: int) -> Case:
        rng = self.rng
        source = self.source()
        # Most cases are about values.
        self.may_fail = rng.random() < 0.25
        where = f" WHERE {self.boolean(2)}" if rng.random() < 0.6 else ""
        form = rng.choice("rows rows rows groups groups groups groups whole count nested".split())
        if form == "rows":
            values = [self.value(3) for _ in range(rng.randint(1, 5))]
            columns = ", ".join(f"{value} AS v{i}" for i, value in enumerate(values))
            return self.finish(number, f"SELECT {columns} FROM {source}{where}")
        if form == "count":
            # Which rows they are is nobody's promise.
            limit = rng.randint(0, 50)
            inner = f"SELECT * FROM {source} WHERE {self.sure(self.boolean, 2)} LIMIT {limit}"
            return self.finish(number, f"SELECT count(*) AS n FROM ({inner})")
        if form == "nested":
            inner = f"SELECT {self.key()} AS g, count(*) AS n FROM {source}{where} GROUP BY 1"
            return self.finish(number, f"SELECT n, count(g) AS m FROM ({inner}) GROUP BY n")
        keys = [self.key() for _ in range(0 if form == "whole" else rng.randint(1, 4))]
        aggregates, rough = [], set()
        for _ in range(rng.randint(1, 4)):
            sql, is_rough = self.aggregate()
            if is_rough:
                rough.add(len(keys) + len(aggregates))
            aggregates.append(sql)
        columns = [f"{key} AS g{i}" for i, key in enumerate(keys)]
        columns += [f"{sql} AS a{i}" for i, sql in enumerate(aggregates)]
        sql = f"SELECT {', '.join(columns)} FROM {source}{where}"
        if keys:
            sql += f" GROUP BY {', '.join(map(str, range(1, len(keys) + 1)))}"
            if rng.random() < 0.25:
                sql += f" HAVING count(*) {rng.choice(['>', '<=', '<>'])} {rng.randint(0, 20)}"
        case = self.finish(number, sql)
        case.rough = rough
        return case

    def finish(self, number: int, sql: str) -> Case:
        return Case(number, sql, self.table.rows, self.failures)

    def source(self) -> str:
        rng, table = self.rng, self.table
        file = f"'{rng.choice(table.files)}'"
        form = rng.choice(["file"] * 5 + ["slice"] * 3 + ["directory", "directory", "union", "join"])
        if form == "directory":
            return f"'{table.directory}'"
        # A larger file is read in several parts at once, so that its rows have no order.
        if form == "slice" and self.size < ONE_PART:
            limit, offset = rng.randint(0, table.rows + 3), rng.randint(0, table.rows // 2 + 3)
            return f"(SELECT * FROM {file} LIMIT {limit} OFFSET {offset})"
        if form == "union":
            return f"(SELECT * FROM {file} UNION ALL SELECT * FROM '{table.directory}')"
        if form == "join":
            counts = f"SELECT k AS j, count(*) AS n FROM {file} GROUP BY k"
            return f"{file} JOIN ({counts}) ON j = k"
        return file

    # What can fail is counted, and not made where it must not.

    def fails(self) -> bool:
        """Whether to make something that can fail."""
        return self.may_fail and self.rng.random() < 0.8

    def sure(self, make, *arguments) -> str:
        """What is made so that it can't fail."""
        before, self.may_fail = self.may_fail, False
        sql = make(*arguments)
        self.may_fail = before
        return sql

    def columns(self, family: str, is_tame: bool = False) -> list[Column]:
        of_family = [it for it in self.table.columns if it.family == family]
        return [it for it in of_family if it.is_tame or not is_tame]

    def family(self) -> str:
        return self.rng.choice([it.family for it in self.table.columns])

    def value(self, depth: int) -> str:
        """Of any type."""
        return self.of(self.family(), depth)

    def wild(self, family: str, depth: int) -> str:
        """Of a family, and of any size."""
        columns = self.columns(family)
        if columns and self.rng.random() < 0.6:
            return self.rng.choice(columns).name
        return self.of(family, depth)

    def family_of(self, *families: str) -> str:
        """One of the families, of which the table has a column if it can be."""
        there = [it.family for it in self.table.columns if it.family in families]
        return self.rng.choice(there or families)

    def of(self, family: str, depth: int) -> str:
        return getattr(self, family)(depth)

    def leaf(self, family: str, literal, is_tame: bool = True) -> str:
        columns = self.columns(family, is_tame)
        if columns and self.rng.random() < 0.8:
            return self.rng.choice(columns).name
        return literal()

    def branches(self, family: str, depth: int) -> str:
        """CASE, COALESCE or NULLIF."""
        rng = self.rng
        # DataFusion may choose a type that is too narrow for all: of integers, or of the keys of
        # dictionaries.
        wide = {"integer": "CAST({} AS BIGINT)", "string": "CAST({} AS VARCHAR)"}.get(family, "{}")
        value = lambda: wide.format(self.sure(self.of, family, depth - 1))  # noqa: E731
        form = rng.choice(["case", "case", "base", "coalesce", "nullif"])
        if form == "coalesce":
            return f"coalesce({', '.join(value() for _ in range(rng.randint(2, 3)))})"
        if form == "nullif":
            return f"nullif({value()}, {value()})"
        otherwise = f" ELSE {value()}" if rng.random() < 0.7 else ""
        if form == "base" and (bases := self.columns("integer", True)):
            whens = " ".join(f"WHEN {rng.randint(-3, 3)} THEN {value()}" for _ in range(2))
            return f"CASE {rng.choice(bases).name} {whens}{otherwise} END"
        count = rng.randint(1, 2)
        whens = " ".join(
            f"WHEN {self.sure(self.boolean, depth - 1)} THEN {value()}" for _ in range(count)
        )
        return f"CASE {whens}{otherwise} END"

    def boolean(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0:
            columns = self.columns("boolean")
            if columns and rng.random() < 0.5:
                return rng.choice(columns).name
            return self.compared(0)
        form = rng.choice(
            ["compare"] * 5 + ["and", "or", "and", "not", "null", "is", "in", "between", "case"]
        )
        if form == "compare":
            return self.compared(depth)
        if form in ("and", "or"):
            terms = [self.sure(self.boolean, depth - 1) for _ in range(rng.randint(2, 3))]
            return f"({f' {form.upper()} '.join(terms)})"
        if form == "not":
            return f"(NOT {self.boolean(depth - 1)})"
        if form == "null":
            return f"({self.any_value(depth - 1)} IS {rng.choice(['', 'NOT '])}NULL)"
        if form == "is":
            truth = rng.choice(["TRUE", "FALSE", "UNKNOWN", "NOT TRUE", "NOT FALSE", "NOT UNKNOWN"])
            return f"({self.boolean(depth - 1)} IS {truth})"
        if form == "in":
            family = self.family_of("integer", "string", "date", "decimal")
            values = [getattr(self, f"{family}_literal")() for _ in range(rng.randint(1, 4))]
            values += ["NULL"] * (rng.random() < 0.2)
            negated = rng.choice(["", "NOT "])
            return f"({self.sure(self.of, family, depth - 1)} {negated}IN ({', '.join(values)}))"
        if form == "between":
            family = self.family_of("integer", "real", "decimal", "date", "string")
            value, low, high = (self.sure(self.of, family, depth - 1) for _ in range(3))
            return f"({value} BETWEEN {low} AND {high})"
        return self.branches("boolean", depth)

    def any_value(self, depth: int) -> str:
        """Any column, the wild ones too, or an expression."""
        if self.rng.random() < 0.5:
            return self.rng.choice(self.table.columns).name
        return self.value(depth)

    def compared(self, depth: int) -> str:
        rng = self.rng
        operator = rng.choice(
            "= <> < <= > >=".split() + ["IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
        )
        if rng.random() < 0.25:
            # Of one type, whatever the values.
            one = rng.choice(self.table.columns)
            others = [it.name for it in self.table.columns if it.type == one.type]
            return f"({one.name} {operator} {rng.choice(others)})"
        family = self.family()
        return f"({self.of(family, depth - 1)} {operator} {self.of(family, depth - 1)})"

    def integer_literal(self) -> str:
        return str(self.rng.choice([-3, -1, 0, 1, 2, 7, 100]))

    def integer(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0 or rng.random() < 0.2:
            return self.leaf("integer", self.integer_literal, is_tame=rng.random() < 0.7)
        form = rng.choice(
            "divide cast".split() if self.fails() else
            "arithmetic arithmetic arithmetic negate divide guarded cast part part branches "
            "branches days".split()
        )
        if form == "arithmetic":
            return f"({self.integer(depth - 1)} {rng.choice('+-*')} {self.integer(depth - 1)})"
        if form == "negate":
            return f"(- {self.leaf('integer', self.integer_literal)})"
        if form == "divide":
            operator = rng.choice("/%")
            if self.fails():
                self.failures += 1
                return f"({self.integer(depth - 1)} {operator} {self.integer(depth - 1)})"
            return f"({self.integer(depth - 1)} {operator} {rng.choice([2, 3, 7, 1000])})"
        if form == "guarded" and (columns := self.columns("integer", True)):
            by = rng.choice(columns).name
            return f"CASE WHEN {by} <> 0 THEN {self.sure(self.integer, depth - 1)} {rng.choice('/%')} {by} END"
        if form == "part":
            part = rng.choice(PARTS)
            return f"EXTRACT({part} FROM {self.of(self.family_of('date', 'timestamp'), depth - 1)})"
        if form == "days":
            return f"CAST({self.date(depth - 1)} AS INT)"
        if form == "cast":
            to = rng.choice(["TINYINT", "SMALLINT", "INT", "BIGINT"])
            family = self.family_of("integer", "boolean", "real", "decimal")
            if family == "boolean":
                return f"CAST({self.boolean(depth - 1)} AS {to})"
            if self.fails():
                self.failures += 1
                return f"CAST({self.wild(family, depth - 1)} AS {to})"
            return f"TRY_CAST({self.sure(self.of, family, depth - 1)} AS {to})"
        return self.branches("integer", depth)

    def real_literal(self) -> str:
        number = self.rng.choice(["0.5", "-2.25", "1e3", "0"])
        return f"CAST({number} AS {self.rng.choice(['DOUBLE', 'REAL'])})"

    def real(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0 or rng.random() < 0.2:
            return self.leaf("real", self.real_literal, is_tame=rng.random() < 0.5)
        form = rng.choice("arithmetic arithmetic arithmetic negate cast cast branches".split())
        if form == "arithmetic":
            return f"({self.real(depth - 1)} {rng.choice('+-*/%')} {self.real(depth - 1)})"
        if form == "negate":
            return f"(- {self.leaf('real', self.real_literal)})"
        if form == "cast":
            family = self.family_of("integer", "real", "decimal")
            return f"CAST({self.of(family, depth - 1)} AS {rng.choice(['DOUBLE', 'REAL'])})"
        return self.branches("real", depth)

    def decimal_literal(self) -> str:
        number = self.rng.choice(["0", "1", "-1.5", "99.99", "0.01", "-123.456"])
        return f"CAST({number} AS DECIMAL({self.rng.choice(['7, 3', '10, 2', '12, 4'])}))"

    def decimal(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0 or rng.random() < 0.3:
            return self.leaf("decimal", self.decimal_literal)
        form = rng.choice("arithmetic arithmetic product cast branches wild".split())
        if form == "arithmetic":
            return f"({self.decimal(0)} {rng.choice('+-')} {self.decimal(0)})"
        if form == "product":
            other = rng.choice([self.decimal_literal(), self.decimal(0), "2"])
            return f"({self.decimal(0)} * {other})"
        if form == "wild" and self.may_fail and (columns := self.columns("decimal")):
            self.failures += 1
            one, other = rng.choice(columns).name, rng.choice(columns).name
            return f"({one} {rng.choice('+-*/%')} {other})"
        if form == "cast":
            to = rng.choice(["DECIMAL(5, 2)", "DECIMAL(12, 0)", "DECIMAL(20, 6)", "DECIMAL(38, 10)"])
            family = self.family_of("integer", "decimal", "real")
            if self.fails():
                self.failures += 1
                return f"CAST({self.wild(family, depth - 1)} AS {to})"
            return f"TRY_CAST({self.sure(self.of, family, depth - 1)} AS {to})"
        return self.branches("decimal", depth)

    def date_literal(self) -> str:
        return f"DATE '{EPOCH + datetime.timedelta(days=self.rng.randint(-9_000, 30_000))}'"

    def date(self, depth: int) -> str:
        if depth <= 0 or self.rng.random() < 0.5:
            return self.leaf("date", self.date_literal, is_tame=self.rng.random() < 0.7)
        if self.rng.random() < 0.3:
            return f"CAST({self.leaf('timestamp', self.timestamp_literal)} AS DATE)"
        return self.branches("date", depth)

    def timestamp_literal(self) -> str:
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(
            seconds=self.rng.randint(-9_000, 30_000) * 86_400 + self.rng.randint(0, 86_399)
        )
        return f"arrow_cast('{moment.isoformat()}', 'Timestamp({self.rng.choice(list(ARROW_UNITS.values()))}, None)')"

    def timestamp(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0 or rng.random() < 0.5:
            return self.leaf("timestamp", self.timestamp_literal)
        if rng.random() < 0.4:
            unit = rng.choice(list(ARROW_UNITS.values()))
            family = self.family_of("date", "timestamp")
            literal = getattr(self, f"{family}_literal")
            return f"arrow_cast({self.leaf(family, literal)}, 'Timestamp({unit}, None)')"
        return self.branches("timestamp", depth)

    def string_literal(self) -> str:
        return f"'{self.rng.choice(WORDS)}'"

    def string(self, depth: int) -> str:
        if depth <= 0 or self.rng.random() < 0.6:
            return self.leaf("string", self.string_literal)
        return self.branches("string", depth)

    def key(self) -> str:
        if self.rng.random() < 0.7:
            return self.rng.choice(self.table.columns).name
        return self.sure(self.value, 2)

    def aggregate(self) -> tuple[str, bool]:
        """An aggregate, and whether its last digits depend on the order of rows."""
        rng = self.rng
        function = rng.choice(["count", "rows", "sum", "sum", "avg", "min", "max"])
        filtered = ""
        if rng.random() < 0.25:
            filtered = f" FILTER (WHERE {self.sure(self.boolean, 1)})"
        if function == "rows":
            return f"count(*){filtered}", False
        if function == "count":
            return f"count({self.sure(self.any_value, 1)}){filtered}", False
        if function in ("min", "max"):
            # What MIN and MAX of NaN are differs: see docs/kernels.md.
            columns = [it for it in self.table.columns if it.family != "real" or it.is_tame]
            argument = rng.choice(columns).name
            if rng.random() < 0.3:
                argument = self.sure(self.of, self.family_of("integer", "decimal", "date", "string"), 1)
            return f"{function}({argument}){filtered}", False
        family = self.family_of("integer", "real", "decimal")
        if family == "real":
            columns = self.columns("real", is_tame=rng.random() < 0.8)
            argument = rng.choice(columns).name if columns else self.real_literal()
        else:
            argument = self.sure(self.of, family, rng.randint(0, 2))
        return f"{function}({argument}){filtered}", function == "avg" or family == "real"

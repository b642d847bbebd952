"""The benchmark `tpch`; see the script beside this file."""

import argparse
import multiprocessing
import sys
import time
from decimal import Decimal

import report
import tpch_data
from engines import ENGINES

# Sums of floats depend on their order.
FLOAT_TOLERANCE = 1e-9


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench tpch")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--needs-node", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.engines.split(",")
    if unknown := set(names) - set(ENGINES):
        parser.error(f"no engine {', '.join(unknown)}: there are {', '.join(ENGINES)}")
    if arguments.needs_node:
        return 0 if "creel" in names else 1

    directory = tpch_data.generate(arguments.scale)
    workers = {name: Worker(name, directory) for name in names}
    seconds: dict[str, dict[int, float]] = {name: {} for name in names}
    differences = []
    for number, query in tpch_data.queries().items():
        answers = {}
        # Engine after engine for each query, so that a slow minute of the machine hits all.
        for name, worker in workers.items():
            seconds[name][number], answers[name] = worker.run(query, arguments.runs)
        if "duckdb" in answers:
            for name, answer in answers.items():
                if why := difference(answers["duckdb"], answer, tpch_data.order_keys(query)):
                    differences.append(f"query {number}: {name} differs from duckdb: {why}")
    for worker in workers.values():
        worker.end()

    totals = {name: sum(times.values()) for name, times in seconds.items()}
    rows = [
        [str(number), *(f"{seconds[name][number]:.3f}" for name in names)]
        for number in tpch_data.queries()
    ]
    report.table(["query", *names], [*rows, ["total", *(f"{totals[name]:.2f}" for name in names)]])
    if "duckdb" in names and not differences:
        print(f"all answers are those of DuckDB, at scale {arguments.scale:g}", file=sys.stderr)
    for line in differences:
        print(line, file=sys.stderr)
    both = {"creel", "datafusion"} <= set(names)
    report.result("tpch", "s", totals, totals["creel"] / totals["datafusion"] if both else None)
    return 1 if differences else 0


class Worker:
    """An engine in a process of its own."""

    def __init__(self, name: str, directory):
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.pipe, theirs = context.Pipe()
        tables = {table: directory / f"{table}.parquet" for table in tpch_data.TABLES}
        self.process = context.Process(target=serve, args=(name, tables, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, query: str, runs: int):
        """Seconds of the fastest run, and the answer."""
        self.pipe.send((query, runs))
        try:
            answer = self.pipe.recv()
        except EOFError:
            sys.exit(f"{self.name} ended at:\n{query}")
        if isinstance(answer, Exception):
            sys.exit(f"{self.name} failed with {answer} at:\n{query}")
        return answer

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


def serve(name: str, tables, pipe) -> None:
    """Answers (query, runs) with (seconds, table) until the pipe closes."""
    try:
        engine = ENGINES[name](tables)
        while True:
            query, runs = pipe.recv()
            best = float("inf")
            for _ in range(runs):
                begin = time.perf_counter()
                answer = engine.run(query)
                best = min(best, time.perf_counter() - begin)
            pipe.send((best, answer))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(RuntimeError(str(error)))


def difference(expected, actual, keys: list[str]) -> str | None:
    """How two answers differ: their rows must be equal, in the order of the keys.

    Integers, strings and dates are equal or not. Engines give a quotient or average of decimals
    different types: decimals of different scale may differ by a unit of the shorter one, and so may
    a decimal and a float. Floats may differ by FLOAT_TOLERANCE, relative.
    """
    if expected.column_names != actual.column_names:
        return f"columns {actual.column_names}, not {expected.column_names}"
    if expected.num_rows != actual.num_rows:
        return f"{actual.num_rows} rows, not {expected.num_rows}"
    places = [expected.column_names.index(key) for key in keys]
    # Rows with equal keys may come in any order.
    for wanted, got in zip(ordered(expected, places), ordered(actual, places)):
        if not all(equal(a, b) for a, b in zip(wanted, got)):
            return f"row {got}, not {wanted}"
    return None


def ordered(table, places: list[int]) -> list[tuple]:
    rows = list(zip(*(column.to_pylist() for column in table.columns)))
    result, begin = [], 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or any(rows[end][i] != rows[begin][i] for i in places):
            result += sorted(rows[begin:end], key=repr)
            begin = end
    return result


def equal(a, b) -> bool:
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        scale = max(a.as_tuple().exponent, b.as_tuple().exponent)
        unit = 0 if a.as_tuple().exponent == b.as_tuple().exponent else Decimal(1).scaleb(scale)
        return abs(a - b) <= unit
    if isinstance(a, float) or isinstance(b, float):
        unit = max(
            float(Decimal(1).scaleb(value.as_tuple().exponent)) if isinstance(value, Decimal) else 0
            for value in (a, b)
        )
        a, b = float(a), float(b)
        return abs(a - b) <= FLOAT_TOLERANCE * max(abs(a), abs(b)) + unit
    return a == b


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark `concurrency`; see the script beside this file."""

import argparse
import statistics
import sys
import threading
import time

import report
import tpch_data
from engines import ENGINES

SHORT = "SELECT o_orderpriority, count(*) FROM orders WHERE o_orderdate < DATE '1992-03-01' GROUP BY o_orderpriority"
LONG = "SELECT l_partkey, count(DISTINCT l_comment) AS comments FROM lineitem GROUP BY l_partkey ORDER BY comments DESC LIMIT 10"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench concurrency")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--engines", default="duckdb,datafusion,creel")
    parser.add_argument("--needs-node", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.engines.split(",")
    if unknown := set(names) - set(ENGINES):
        parser.error(f"no engine {', '.join(unknown)}: there are {', '.join(ENGINES)}")
    if arguments.needs_node:
        return 0 if "creel" in names else 1

    directory = tpch_data.generate(arguments.scale)
    tables = {table: directory / f"{table}.parquet" for table in tpch_data.TABLES}
    results, rows = {}, []
    for name in names:
        engine = ENGINES[name](tables)
        other = engine.another()
        engine.run(SHORT)
        alone = median_ms(engine, arguments.runs)
        with Load(other) as load:
            beside = median_ms(engine, arguments.runs)
        results |= {f"{name} alone": alone, f"{name} beside": beside}
        rows.append(
            [name, f"{alone:.1f}", f"{beside:.1f}", f"{beside / alone:.2f}", f"{load.scans}"]
        )
    report.table(["engine", "alone ms", "beside ms", "ratio", "scans meanwhile"], rows)
    ratio = results["creel beside"] / results["creel alone"] if "creel" in names else None
    report.result("concurrency", "ms", results, ratio)
    return 0


def median_ms(engine, runs: int) -> float:
    def run() -> float:
        begin = time.perf_counter()
        engine.run(SHORT)
        return (time.perf_counter() - begin) * 1000

    return statistics.median(run() for _ in range(runs))


class Load:
    """Scan after scan from another thread, over a connection of its own."""

    def __init__(self, engine):
        self.engine = engine
        self.scans = 0
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.scan)

    def scan(self) -> None:
        while not self.ends.is_set():
            self.engine.run(LONG)
            self.scans += 1

    def __enter__(self):
        self.thread.start()
        # Past planning.
        time.sleep(0.2)
        return self

    def __exit__(self, *_) -> None:
        self.ends.set()
        self.thread.join()


if __name__ == "__main__":
    sys.exit(main())

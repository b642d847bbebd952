"""The benchmark `pool`; see the script beside this file."""

import json
import sys

import report


def main() -> None:
    lines = [json.loads(line) for line in sys.stdin]
    rows, results = [], {}
    for line in lines:
        failures = line.get("failures")
        rows.append([
            line["name"],
            line["trace"],
            str(line["threads"]),
            f"{line['cpu_ns']:.0f}",
            f"{line['ns']:.0f}",
            f"{line['lost']:.1f}" if "lost" in line else "",
            "" if failures is None else f"{failures} of {line['allocations']}",
        ])
        name = f"{line['name']}/{line['trace']}/{line['threads']}"
        results[name] = line["cpu_ns"]
        if failures is not None:
            results[f"{name}/lost"] = line["lost"]
            results[f"{name}/failures"] = failures
    header = ["allocator", "trace", "threads", "ns on a core", "ns", "% lost", "failures at 95 %"]
    report.table(header, rows)
    ratio = results["arena/queries/1"] / results["mimalloc/queries/1"]
    report.result("pool", "ns on a core per operation, of a thread", results, ratio)


if __name__ == "__main__":
    main()

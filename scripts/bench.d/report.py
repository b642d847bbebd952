"""What a benchmark prints: a table for a person, an object for a program."""

import json
import sys


def table(header: list[str], rows: list[list[str]]) -> None:
    """Prints to standard error, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        first, *rest = zip(row, widths)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        print("  ".join(cells).rstrip(), file=sys.stderr)


def result(bench: str, unit: str, results: dict[str, float], ratio: float | None) -> None:
    """Prints the object to standard output."""
    rounded = [{"name": name, "value": round(value, 6)} for name, value in results.items()]
    print(
        json.dumps(
            {
                "bench": bench,
                "unit": unit,
                "results": rounded,
                "ratio": None if ratio is None else round(ratio, 4),
            }
        )
    )

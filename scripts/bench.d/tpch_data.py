"""TPC-H: its tables as Parquet files, made once, and its queries."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

TABLES = "region nation supplier customer part partsupp orders lineitem".split()


def generate(scale: float) -> Path:
    """The directory with `TABLE.parquet` for each table, generated where it is not there."""
    directory = Path(os.environ["CREEL_BENCH_DATA"]) / f"tpch-{scale:g}"
    if not directory.exists():
        print(f"generating TPC-H at scale {scale:g} in {directory}", file=sys.stderr)
        unfinished = directory.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        generator = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        subprocess.run(
            [generator, "parquet", "-s", f"{scale:g}", "-o", unfinished],
            check=True,
            stdout=sys.stderr,
        )
        unfinished.rename(directory)
    return directory


def queries() -> dict[int, str]:
    """The 22 queries, with the parameters of the specification's validation (of scale 1)."""
    directory = Path(__file__).with_name("queries")
    return {int(path.stem): path.read_text() for path in sorted(directory.glob("*.sql"))}


def order_keys(query: str) -> list[str]:
    """The columns that the answer is ordered by."""
    found = re.search(r"^ORDER BY (.*)$", query, re.MULTILINE)
    return [key.split()[0] for key in found[1].split(",")] if found else []

"""The benchmark `idle`; see the script beside this file."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import report


def main() -> int:
    seconds, gpus = float(sys.argv[1]), sys.argv[2]
    status = subprocess.run(["creel", "--json", "status"], check=True, stdout=subprocess.PIPE)
    process = Path("/proc") / str(json.loads(status.stdout)["agent"]["pid"])
    # Past what it does at its start.
    time.sleep(2)
    begin = cpu_seconds(process)
    time.sleep(seconds)
    share = (cpu_seconds(process) - begin) / seconds * 100
    memory = resident_mb(process)
    report.table(
        ["idle agent", "resident MB", "% of a core"],
        [[f"{gpus} GPUs, {seconds:g} s", f"{memory:.1f}", f"{share:.3f}"]],
    )
    report.result("idle", "MB, %", {"resident": memory, "cpu": share}, None)
    return 0


def cpu_seconds(process: Path) -> float:
    # proc_pid_stat(5): fields 14 to 17 are utime, stime and those of children that have ended, as
    # the one that asks the driver. The name before may hold spaces.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident_mb(process: Path) -> float:
    fields = (process / "status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in fields if line.startswith("VmRSS:"))
    return kib * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())

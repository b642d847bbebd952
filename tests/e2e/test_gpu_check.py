"""`scripts/gpu-check`, packed, on a simulated GPU: what it would do on a real one. Its numbers mean
nothing here."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from node import BINARIES

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu-check"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gpu-check")
    file = directory / "check.tar.gz"
    subprocess.run([SCRIPT, "pack", file], check=True, capture_output=True)
    assert file.stat().st_size < 64e6
    subprocess.run(["tar", "-xzf", file, "-C", directory], check=True)
    return directory / "gpu-check"


def check(unpacked, tmp_path, sanitizer: str, *faults):
    """Its exit code and summary, on a GPU with these faults, beside a sanitizer that does this."""
    node = tmp_path / "node"
    prepare = [BINARIES / "simulated-gpu", "prepare", "--dir", node, "--gpus", "t4:1"]
    subprocess.run(prepare, check=True, capture_output=True)
    for fault in faults:
        subprocess.run([BINARIES / "simulated-gpu", "fault", "--dir", node, *fault], check=True)
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/bash\n{sanitizer}\n")
    tool.chmod(0o755)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(node / "lib"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    done = subprocess.run([unpacked / "gpu-check", "20000"], capture_output=True, env=environment)
    return done.returncode, (unpacked / "results" / "summary.md").read_text()


def test_all_of_it_goes_well(unpacked, tmp_path):
    code, summary = check(unpacked, tmp_path, "echo '========= ERROR SUMMARY: 0 errors'")
    assert code == 0, summary
    assert " 0 failed;" in summary and "need a simulated GPU" in summary
    assert "| memcheck | nothing found |" in summary
    assert "| racecheck | nothing found |" in summary
    measured = json.loads((unpacked / "results" / "benchmark.json").read_text())
    assert all(result["value"] > 0 for result in measured["results"]), measured
    names = "".join(result["name"] for result in measured["results"])
    for name in ("copy", "pool NONE", "filter", "expression", "sum", "group"):
        assert name in names
        assert f"| {name}" in summary


def test_what_fails_is_named(unpacked, tmp_path):
    launch = ("--function", "cuLaunchKernel", "--call", "1", "--cuda-error", "LAUNCH_FAILED")
    found = "echo '========= ERROR SUMMARY: 2 errors'; exit 86"
    code, summary = check(unpacked, tmp_path, found, launch)
    assert code == 1
    assert "- **failed**: scan::" in summary
    assert "- **failed**: device::copies_go_there_and_back" not in summary
    assert "**ended with 1**" in summary and "CUDA_ERROR_LAUNCH_FAILED" in summary
    assert "| memcheck | **failed** (86), 1 processes with errors: memcheck.log |" in summary


def test_without_programs_it_says_where_they_come_from():
    done = subprocess.run([SCRIPT], capture_output=True, text=True)
    assert done.returncode == 2 and "pack" in done.stderr

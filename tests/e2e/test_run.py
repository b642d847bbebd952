"""`scripts/run`: what it promises to whoever calls it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from node import eventually, is_alive

RUN = Path(__file__).parents[2] / "scripts" / "run"


def run(*arguments, **options):
    return subprocess.run(
        [RUN, *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_standard_output_is_the_commands_alone(tmp_path):
    done = run("--gpus", "h200:2", "bash", "-c", "pwd; cat; creel-discovery --format spark", cwd=tmp_path, input="in\n")
    assert done.stdout == f'{tmp_path}\nin\n{{"name": "gpu", "addresses":["0","1"]}}\n', done.stderr


def test_the_status_is_the_commands():
    assert run("bash", "-c", "exit 7").returncode == 7
    assert run("--nosuch").returncode == 2


def test_a_wrong_spec_says_so():
    done = run("--gpus", "abacus:2", "true")
    assert done.returncode != 0 and "abacus" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(number, tmp_path):
    note = tmp_path / "note"
    command = f"creel sql -c 'SELECT 1' >&2; (creel --json executors; echo $CREEL_RUN_DIR) > {note}.new; mv {note}.new {note}; sleep 60"
    with subprocess.Popen(
        [RUN, "bash", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        eventually(note.exists, 90)
        run_dir = Path(note.read_text().splitlines()[-1])
        assert run_dir.is_dir()
        processes = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if f"CREEL_RUN_DIR={run_dir}".encode() in environment_of(path)
        ]
        assert processes
        running.send_signal(number)
        assert running.wait(15) == (143 if number == signal.SIGTERM else -9)
    eventually(lambda: not run_dir.parent.exists(), 15)
    eventually(lambda: not any(map(is_alive, processes)), 5)


def environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_the_tour():
    with subprocess.Popen(
        [RUN, "--gpus", "h200:1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        shown = ""
        for line in running.stdout:
            shown += line
            if "Ctrl-C" in line:
                break
        time.sleep(0.2)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(20) in (0, 130)
    assert "H200" in shown and '"addresses":["0"]' in shown and "indigo" in shown

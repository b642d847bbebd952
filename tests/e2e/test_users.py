"""Several users of one node: each executor is its user, to the kernel too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

# Of Debian: games and nobody.
ANN, BOB = 5, 65534


def run_as(uid: int, socket, statement: str):
    return subprocess.run(
        [sys.executable, Path(__file__).with_name("as_user.py"), str(uid), str(socket), statement],
        capture_output=True, text=True, timeout=60,
    )


@pytest.fixture
def files(tmp_path):
    """A file of each user that nobody else may read."""
    for path in [tmp_path, *tmp_path.parents][:3]:
        path.chmod(0o755)
    found = {}
    for uid in (ANN, BOB):
        file = tmp_path / f"of-{uid}.csv"
        file.write_text(f"owner\n{uid}\n")
        file.chmod(0o600)
        os.chown(file, uid, uid)
        found[uid] = file
    return found


def test_each_reads_its_own_files_and_not_the_others(start, files):
    node = start()
    for uid, other in ((ANN, BOB), (BOB, ANN)):
        own = run_as(uid, node.socket, f"SELECT owner FROM '{files[uid]}'")
        assert own.stdout == f"[({uid},)]\n", own
        others = run_as(uid, node.socket, f"SELECT owner FROM '{files[other]}'")
        assert others.returncode == 1 and str(files[other]) in others.stdout, others
        assert "denied" in others.stdout.lower(), others
    executors = {executor["uid"]: executor for executor in node.executors()}
    assert executors.keys() == {ANN, BOB}
    for uid, executor in executors.items():
        status = Path(f"/proc/{executor['pid']}/status").read_text()
        ids = {line.split()[0]: line.split()[1:] for line in status.splitlines()}
        assert ids["Uid:"] == [str(uid)] * 4 and "0" not in ids["Gid:"] + ids["Groups:"]
        assert ids["CapEff:"] == ids["CapPrm:"] == ["0000000000000000"]


def test_what_another_user_sees(start):
    node = start()
    assert run_as(ANN, node.socket, "SELECT 1").returncode == 0
    creel = node.copy_binary("creel")

    def ask(uid, *arguments):
        return subprocess.run(
            [creel, *arguments], env=node.environment, user=uid, group=uid, extra_groups=[],
            capture_output=True, text=True, timeout=20,
        )

    assert f"cpu-{ANN}" in ask(ANN, "--json", "executors").stdout
    other = ask(BOB, "--json", "executors")
    assert other.returncode == 0 and f"cpu-{ANN}" not in other.stdout
    assert ask(BOB, "status").returncode == 0


def test_an_agent_without_root_serves_its_own_user_alone(start, files):
    node = start(uid=ANN)
    assert run_as(ANN, node.socket, f"SELECT owner FROM '{files[ANN]}'").stdout == f"[({ANN},)]\n"
    other = run_as(BOB, node.socket, "SELECT 1")
    assert other.returncode == 1 and str(ANN) in other.stdout, other
    assert [executor["uid"] for executor in node.executors()] == [ANN]

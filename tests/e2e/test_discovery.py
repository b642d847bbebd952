"""What Spark and YARN are told."""

import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from node import BINARIES

# A GPU that is cut into slices counts as those, as YARN counts them.
SPARK = '{"name": "gpu", "addresses":["0","1","2","3","4"]}\n'
SCRIPT = Path(__file__).parents[2] / "scripts" / "getGpusResources.sh"


def discover(environment, *arguments, program=BINARIES / "creel-discovery"):
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=20
    )


def test_spark(gpu_node):
    done = discover(gpu_node.environment, "--format", "spark")
    assert done.stdout == SPARK
    assert (done.returncode, done.stderr) == (0, "")


def test_the_script_for_spark(gpu_node, tmp_path):
    # As Spark ships it: alone.
    alone = tmp_path / "getGpusResources.sh"
    alone.write_bytes(SCRIPT.read_bytes())
    alone.chmod(0o755)
    done = discover(gpu_node.environment, program=alone)
    assert done.stdout == SPARK, done.stderr


def test_the_script_without_the_binary(tmp_path):
    done = discover({"PATH": "/usr/bin:/bin"}, program=SCRIPT)
    if done.returncode == 0:
        pytest.skip("creel-discovery is installed on this machine")
    assert "creel-discovery" in done.stderr and done.stdout == ""


def test_no_driver():
    if any(os.path.exists(f"/dev/nvidia{i}") for i in range(8)):
        pytest.skip("this machine has a driver")
    done = discover(dict(os.environ), "--format", "spark")
    assert done.stdout == '{"name": "gpu", "addresses":[]}\n' and done.returncode == 0
    assert "libnvidia-ml.so.1" in done.stderr and done.stderr.count("\n") == 1
    assert json.loads(discover(dict(os.environ), "--format", "json").stdout)


def test_yarn(gpu_node):
    done = discover(gpu_node.environment, "--format", "nvidia-smi")
    log = ElementTree.fromstring(done.stdout)
    assert log.tag == "nvidia_smi_log" and log.findtext("attached_gpus") == "5"
    # To YARN a slice is a GPU.
    assert [gpu.findtext("minor_number") for gpu in log.iter("gpu")] == [*4 * ["0"], "1"]
    uuids = [gpu.findtext("uuid") for gpu in log.iter("gpu")]
    assert [uuid[:4] for uuid in uuids] == [*4 * ["MIG-"], "GPU-"] and len(set(uuids)) == 5


def test_table_and_json(gpu_node):
    assert "H200" in discover(gpu_node.environment, "--format", "table").stdout
    found = json.loads(discover(gpu_node.environment, "--format", "json").stdout)
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]

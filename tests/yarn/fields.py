"""What Creel's nvidia-smi says, beside what a NodeManager's REST shows of it, field by field."""

import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from cluster import Cluster


def compare(cluster: Cluster) -> ElementTree.Element:
    """Asserts that each GPU shows as it was said; gives what nvidia-smi said."""
    command = [cluster.smi / "nvidia-smi", "-x", "-q"]
    document = ElementTree.fromstring(subprocess.check_output(command, env=cluster.environment))
    shown = cluster.nm("/ws/v1/node/resources/yarn.io%2Fgpu")["gpuDeviceInformation"]
    driver, gpus, fields = VERSIONS[cluster.version]
    assert shown[driver] == document.findtext("driver_version")
    said = document.findall("gpu")
    assert len(shown[gpus]) == len(said) == cluster.resource()
    for gpu, seen in zip(said, shown[gpus]):
        assert fields(seen) == fields_of_document(gpu)
    return document


def fields_of_document(gpu) -> dict:
    """What YARN reads of a `<gpu>`."""

    def number(path: str, unknown: float) -> float:
        text = gpu.findtext(path)
        return unknown if text == "N/A" else float(text.split(" ")[0])

    # Java's Float.MIN_VALUE.
    no_temperature = pytest.approx(1.4e-45, abs=1e-45)
    return {
        "name": gpu.findtext("product_name"),
        "uuid": gpu.findtext("uuid"),
        "minor": int(gpu.findtext("minor_number")),
        "used": number("fb_memory_usage/used", -1),
        "free": number("fb_memory_usage/free", -1),
        "utilization": number("utilization/gpu_util", 0),
        "temperature": number("temperature/gpu_temp", no_temperature),
        "temperature_max": number("temperature/gpu_temp_max_threshold", no_temperature),
        "temperature_slow": number("temperature/gpu_temp_slow_threshold", no_temperature),
    }


def fields_3_3(gpu: dict) -> dict:
    memory, temperature = gpu["gpuMemoryUsage"], gpu["temperature"]
    assert memory["totalMemoryMiB"] == memory["usedMemoryMiB"] + memory["availMemoryMiB"]
    return {
        "name": gpu["productName"],
        "uuid": gpu["uuid"],
        "minor": gpu["minorNumber"],
        "used": memory["usedMemoryMiB"],
        "free": memory["availMemoryMiB"],
        "utilization": gpu["gpuUtilizations"]["overallGpuUtilization"],
        "temperature": temperature["currentGpuTemp"],
        "temperature_max": temperature["maxGpuTemp"],
        "temperature_slow": temperature["slowThresholdGpuTemp"],
    }


def fields_3_5(gpu: dict) -> dict:
    def number(text: str) -> float:
        return float(text.split(" ")[0])

    memory, temperature = gpu["fb_memory_usage"], gpu["temperature"]
    return {
        "name": gpu["product_name"],
        "uuid": gpu["uuid"],
        "minor": gpu["minor_number"],
        "used": number(memory["used"]),
        "free": number(memory["free"]),
        "utilization": number(gpu["utilization"]["gpu_util"]),
        "temperature": number(temperature["gpu_temp"]),
        "temperature_max": number(temperature["gpu_temp_max_threshold"]),
        "temperature_slow": number(temperature["gpu_temp_slow_threshold"]),
    }


# How the driver and the list of GPUs are called, and what is read of a GPU.
VERSIONS = {
    "3.3.6": ("driverVersion", "gpus", fields_3_3),
    "3.5.0": ("driver_version", "gpu", fields_3_5),
}

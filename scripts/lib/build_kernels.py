"""Compiles the kernels with NVRTC, and assembles the PTX for each chip. See scripts/build-kernels."""

import argparse
import ctypes
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "executor-runtime/kernels"
PTX = KERNELS / "ptx"
OPTIONS = [
    "--gpu-architecture=compute_70",
    "--std=c++17",
    "--device-int128",
    # A product and a sum rounded once would differ from the CPU's, rounded twice.
    "--fmad=false",
]
CHIPS = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]


def wheel(package, path):
    """A file of an installed wheel."""
    return str(metadata.distribution(package).locate_file(path))


def version(package):
    return metadata.version(package)


class Nvrtc:
    """NVRTC's C interface, as far as it takes to make PTX."""

    def __init__(self):
        self.library = ctypes.CDLL(
            wheel("nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        )
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, function, *arguments):
        status = getattr(self.library, function)(*arguments)
        if status:
            reason = self.library.nvrtcGetErrorString(status).decode()
            raise RuntimeError(f"{function}: {reason}")

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode()

    def compile(self, source, name, options):
        program = ctypes.c_void_p()
        self.call(
            "nvrtcCreateProgram",
            ctypes.byref(program), source.encode(), name.encode(), 0, None, None,
        )
        arguments = [option.encode() for option in options]
        array = (ctypes.c_char_p * len(arguments))(*arguments)
        try:
            self.call("nvrtcCompileProgram", program, len(arguments), array)
        except RuntimeError as error:
            raise RuntimeError(f"{name}: {error}\n{self.text(program, 'ProgramLog')}") from None
        ptx = self.text(program, "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return ptx


def included(path, seen):
    """The file and all that it includes, in the order that the compiler sees them."""
    if path in seen:
        return
    seen.append(path)
    for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE):
        beside = path.parent / name
        included(beside if beside.exists() else KERNELS / name, seen)


def source_hash(source):
    files = []
    included(source, files)
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(KERNELS)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def build(source):
    name = str(source.relative_to(KERNELS))
    # Paths are given relative, so that the sources may lie anywhere.
    os.chdir(KERNELS)
    ptx = Nvrtc().compile(source.read_text(), name, [*OPTIONS, f"-I{source.parent.name}", "-I."])
    return {
        "name": source.stem,
        "source": name,
        "source_sha256": source_hash(source),
        "entries": sorted(re.findall(r"^\.visible \.entry (\w+)\(", ptx, re.MULTILINE)),
        "ptx": ptx,
    }


def assemble(ptx, chip, cache):
    """What a chip gives each kernel: {kernel: {registers, shared, stack, spilled}}."""
    ptxas = wheel("nvidia-cuda-nvcc-cu12", "nvidia/cuda_nvcc/bin/ptxas")
    key = hashlib.sha256(
        f"{version('nvidia-cuda-nvcc-cu12')} {chip}\n{ptx}".encode()
    ).hexdigest()
    kept = cache / f"{key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    done = subprocess.run(
        [ptxas, "--verbose", f"--gpu-name={chip}", "--output-file=/dev/null", "/dev/stdin"],
        input=ptx, capture_output=True, text=True, check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ptxas for {chip}: {done.stderr}")
    found, kernel = {}, None
    for line in done.stderr.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = match[1]
            found[kernel] = {"registers": 0, "shared": 0, "stack": 0, "spilled": 0}
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            # Of the kernel, or of a function that it calls.
            found[kernel]["stack"] += int(match[1])
            found[kernel]["spilled"] += int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            found[kernel]["registers"] = int(match[1])
            shared = re.search(r"(\d+) bytes smem", line)
            found[kernel]["shared"] = int(shared[1]) if shared else 0
    cache.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found))
    return found


def manifest(modules):
    lines = [
        "# Written by scripts/build-kernels.",
        f'compiler = "NVRTC {version("nvidia-cuda-nvrtc-cu12")}"',
        f"options = {json.dumps(OPTIONS)}",
    ]
    for module in modules:
        lines += [
            "",
            "[[module]]",
            f'name = "{module["name"]}"',
            f'source = "{module["source"]}"',
            "# Of the source and of all that it includes.",
            f'source_sha256 = "{module["source_sha256"]}"',
            f'ptx_sha256 = "{hashlib.sha256(module["ptx"].encode()).hexdigest()}"',
            f"entries = {json.dumps(module['entries'])}",
        ]
    text = "\n".join(lines) + "\n"
    tomllib.loads(text)
    return text


def resources(modules, of_chip):
    lines = [
        "# What kernels take",
        "",
        f"Written by `scripts/build-kernels`: ptxas {version('nvidia-cuda-nvcc-cu12')}. "
        "Registers of a thread for each chip; shared memory of a block beside what the launch asks "
        "for, and stack of a thread, both in bytes and the most of all chips. Nothing is spilled: "
        "that fails the build.",
        "",
        "| module | kernel | shared | stack | " + " | ".join(CHIPS) + " |",
        "|---|---|" + "---:|" * (2 + len(CHIPS)),
    ]
    for module in modules:
        for kernel in module["entries"]:
            each = [of_chip[module["name"], chip][kernel] for chip in CHIPS]
            columns = [
                module["name"],
                f"`{kernel}`",
                max(one["shared"] for one in each),
                max(one["stack"] for one in each),
                *(one["registers"] for one in each),
            ]
            lines.append("| " + " | ".join(map(str, columns)) + " |")
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--check", action="store_true")
    arguments = arguments.parse_args()

    sources = sorted(KERNELS.glob("*/*.cu"))
    with ProcessPoolExecutor() as pool:
        modules = list(pool.map(build, sources))
        names = [entry for module in modules for entry in module["entries"]]
        if twice := {name for name in names if names.count(name) > 1}:
            raise RuntimeError(f"two kernels of one name: {', '.join(sorted(twice))}")
        jobs = {
            (module["name"], chip): pool.submit(assemble, module["ptx"], chip, arguments.cache)
            for module in modules
            for chip in CHIPS
        }
        of_chip = {key: job.result() for key, job in jobs.items()}

    spilled = [
        f"{kernel} spills {uses['spilled']} bytes on {chip}"
        for (_, chip), kernels in of_chip.items()
        for kernel, uses in kernels.items()
        if uses["spilled"]
    ]
    if spilled:
        raise RuntimeError("\n".join(spilled))

    made = {f"{module['name']}.ptx": module["ptx"] for module in modules}
    made["manifest.toml"] = manifest(modules)
    made["resources.md"] = resources(modules, of_chip)
    there = {file.name: file.read_text() for file in PTX.iterdir()} if PTX.exists() else {}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    if arguments.check:
        if stale:
            raise RuntimeError(
                f"not what the sources make: {', '.join(stale)}; run scripts/build-kernels"
            )
        return
    PTX.mkdir(exist_ok=True)
    for name in stale:
        if name in made:
            (PTX / name).write_text(made[name])
        else:
            (PTX / name).unlink()


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"build-kernels: {error}")

"""Mutants of kernels and product: see scripts/mutants.

A mutant of a kernel (.cu, .cuh) is a library of kernels of its own, which the simulated driver loads
in place of the one that is built in: tests are not built anew. With `sanitize = true` it is one with
AddressSanitizer, for what no test notices otherwise. A mutant of other sources is built in
a copy of the tree, with a target directory of its own.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

KERNELS = "executor-runtime/kernels"
# A mutant that runs for so many seconds hangs, and that is found out too.
PATIENCE = 300


def is_kernel(mutant):
    return mutant["file"].endswith((".cu", ".cuh"))


class Mutants:
    def __init__(self, root, cache, mutants):
        self.root = root
        self.cache = cache
        self.tree = cache / "tree"
        self.mutants = mutants
        self.ready = set()

    def found(self, mutant):
        """Whether the tests fail on a mutant."""
        file = pathlib.Path(mutant["file"])
        text = (self.root / file).read_text()
        if text.count(mutant["old"]) != 1:
            sys.exit(f"mutants: {mutant['name']}: not once in {file}: {mutant['old']!r}")
        text = text.replace(mutant["old"], mutant["new"])
        return (self.kernel if is_kernel(mutant) else self.source)(mutant, file, text)

    def kernel(self, mutant, file, text):
        command = self.command(mutant)
        if "kernels" not in self.ready:
            self.check(["cargo", "build", "--locked", "--package", "creel-simulated-cuda"])
            self.ready.add("kernels")
        self.without_mutant(mutant, command, self.root, {})
        kernels = self.cache / "kernels"
        shutil.rmtree(kernels, ignore_errors=True)
        shutil.copytree(self.root / KERNELS, kernels)
        (kernels / file.relative_to(KERNELS)).write_text(text)
        library = self.cache / "kernels.so"
        program = pathlib.Path(os.environ["CARGO_TARGET_DIR"]) / "debug/simulated-kernels"
        build = [program, "--root", kernels, "--out", library]
        environment = {"SIMULATED_GPU_KERNELS": str(library)}
        if mutant.get("sanitize"):
            build += ["--sanitize", "--work", self.cache / "sanitized-objects"]
            sanitizer = self.check(["g++", "-print-file-name=libasan.so"]).strip()
            environment |= {"SIMULATED_GPU_PRELOAD": sanitizer, "ASAN_OPTIONS": "detect_leaks=0"}
        else:
            build += ["--work", self.cache / "objects"]
        self.check(build)
        return not self.passes(command + ["--", mutant["tests"]], self.root, environment)

    def source(self, mutant, file, text):
        # What is built for each mutant is built fast, not to run fast.
        setting = f"profile.dev.package.{mutant['package']}.opt-level=0"
        command = self.command(mutant) + ["--config", setting]
        environment = {"CARGO_TARGET_DIR": str(self.cache / "target"), "CARGO_INCREMENTAL": "1"}
        if "tree" not in self.ready:
            self.copy()
            self.ready.add("tree")
        self.without_mutant(mutant, command, self.tree, environment)
        old = (self.tree / file).read_text()
        try:
            (self.tree / file).write_text(text)
            self.check(command + ["--no-run"], self.tree, environment)
            return not self.passes(command + ["--", mutant["tests"]], self.tree, environment)
        finally:
            (self.tree / file).write_text(old)

    @staticmethod
    def command(mutant):
        suite = ["--lib"] if mutant["suite"] == "lib" else ["--test", mutant["suite"]]
        return ["cargo", "test", "--locked", "--package", mutant["package"], *suite]

    def without_mutant(self, mutant, command, directory, environment):
        """Tests that fail anyway find nothing. All that mutants like this one need run once."""
        kind = (mutant["package"], mutant["suite"], is_kernel(mutant))
        if kind in self.ready:
            return
        alike = [m for m in self.mutants if (m["package"], m["suite"], is_kernel(m)) == kind]
        names = sorted({m["tests"] for m in alike})
        print(f"without a mutant: {' '.join(names)}", flush=True)
        self.check(command + ["--", *names], directory, environment)
        self.ready.add(kind)

    def copy(self):
        """Copies the sources; those that are there already keep their times, and so their builds."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = self.check(command).split("\0")
        for name in filter(None, names):
            source, target = self.root / name, self.tree / name
            if not source.is_file():
                continue
            if target.is_file() and target.read_bytes() == source.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(source.stat().st_mode)

    def check(self, command, directory=None, environment=None):
        result = self.run(command, directory or self.root, environment or {})
        if result.returncode != 0:
            sys.exit(f"mutants: {' '.join(map(str, command))}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def passes(self, command, directory, environment):
        try:
            result = self.run(command, directory, environment)
        except subprocess.TimeoutExpired:
            return False
        if result.returncode == 0 and not re.search(r"\b[1-9][0-9]* passed", result.stdout):
            sys.exit(f"mutants: no tests: {' '.join(command)}")
        return result.returncode == 0

    @staticmethod
    def run(command, directory, environment):
        return subprocess.run(
            command,
            cwd=directory,
            env=os.environ | environment,
            timeout=PATIENCE if "--no-run" not in command and "test" in command else None,
            capture_output=True,
            text=True,
            check=False,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    with open(arguments.root / "tests/mutants.toml", "rb") as file:
        mutants = tomllib.load(file)["mutant"]
    if arguments.names:
        mutants = [m for m in mutants if any(name in m["name"] for name in arguments.names)]
        if not mutants:
            sys.exit(f"mutants: none of {' '.join(arguments.names)}")
    runner = Mutants(arguments.root, arguments.cache, mutants)
    survivors = 0
    for mutant in mutants:
        found = runner.found(mutant)
        survivors += not found
        print(f"{'found   ' if found else 'SURVIVES'}  {mutant['name']}", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} found")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()

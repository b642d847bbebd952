"""Which tests run, by the option `--long` and the markers `long` and `root`."""

import os
import sys

import pytest

sys.dont_write_bytecode = True


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also the tests marked long")
    parser.addoption("--case", type=int, help="one random case alone, by its number")


def pytest_collection_modifyitems(config, items):
    skips = []
    if not config.getoption("--long"):
        skips.append(("long", "only with --long"))
    if os.geteuid() != 0:
        skips.append(("root", "needs root"))
    for item in items:
        for marker, reason in skips:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))

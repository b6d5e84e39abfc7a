"""The plugin of pytest with which `mutate.py` runs tests: it notes when each one ran, and can run chosen ones alone.

pytest -p tools.mutation_tests [--ran=FILE] [--only=FILE] ...
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two files."""
    parser.addoption("--ran", type=Path, help="file that gets a line for each passed test: id, first, last second")
    parser.addoption("--only", type=Path, help="file with the ids of the tests to run, one a line")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not in the file of --only."""
    if file := config.getoption("only"):
        wanted = set(Path(file).read_text(encoding="utf-8").splitlines())
        left_out = [item for item in items if item.nodeid not in wanted]
        items[:] = [item for item in items if item.nodeid in wanted]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note when the test ran, its fixtures included; one that fails without a fault finds none."""
    started, failed = time.time(), item.session.testsfailed
    done = yield
    if (file := item.config.getoption("ran")) and item.session.testsfailed == failed:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([item.nodeid, int(started), int(time.time())]) + "\n")
    return done

"""Deals test files out to several runs of pytest: each takes the next file that none has taken, until all are.

    pytest -p tests.sharing --shares=DIR FILE ...        the same files, in the same order, and the same DIR in each

DIR is empty at first and holds an entry for each file that was taken. The runs' reports add up to one of all tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The directory by which the runs know of each other."""
    parser.addoption("--shares", type=Path, required=True, help="directory that all runs share, empty at first")


def pytest_configure() -> None:
    """Keep what pytest compiles, whatever PYTHONDONTWRITEBYTECODE says: the next run collects the same files, in half
    the time."""
    sys.dont_write_bytecode = False


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run what falls to this run. Replaces pytest's own loop over all tests."""
    if session.config.option.collectonly:
        return None
    if session.testsfailed:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    mine = dealt(session.items, session.config.getoption("shares"))
    item = next(mine, None)
    while item is not None:
        # Known before the test runs: pytest keeps the fixtures that the next one needs.
        following = next(mine, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def dealt(items: list[pytest.Item], shares: Path) -> Iterator[pytest.Item]:
    """The tests of each file that is still free when its turn comes."""
    mine: dict[str, bool] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file not in mine:
            mine[file] = take(shares, file.replace("/", "."))
        if mine[file]:
            yield item


def take(shares: Path, name: str) -> bool:
    """Whether the file is this run's."""
    try:
        (shares / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

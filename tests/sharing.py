"""Deal test files out to several runs of pytest, and store what came of each file.

    pytest -p tests.sharing --shares=DIR FILE ...        the same files, in the same order, and the same DIR in each

Each run takes the next file that no run has taken. DIR gets an entry for each file: empty while its tests run, then the
file's result as JSON (`Result`). Files that have an entry are not run, so a run that was interrupted can be resumed:
remove the entries that are empty.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from tests.preloaded import Popen


@dataclass
class Result:
    """What came of the tests of one file."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """Ids of the tests that failed."""
    skipped: list[str] = field(default_factory=list)
    """Ids of the tests that were skipped, each with the reason."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Seconds of a core, of this process and of the children that it waited for."""


class Sharing:
    """The part of the plugin that lives as long as a run."""

    def __init__(self, shares: Path) -> None:
        self._shares = shares
        self._outcomes: dict[str, str] = {}
        """By test: "" = passed, "failed", or why it was skipped."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of a test's phase."""
        known = self._outcomes.setdefault(report.nodeid, "")
        if report.failed:
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped and not known:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self._outcomes[report.nodeid] = f"skipped: {reason}"

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what falls to this run. Replaces pytest's own loop over all tests."""
        if session.config.option.collectonly:
            return None
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        mine = self._dealt(session.items)
        item = next(mine, None)
        started = _now()
        while item is not None:
            # Known before the test runs: pytest keeps the fixtures that the next one needs.
            following = next(mine, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if following is None or following.path != item.path:
                self._store(item, started)
                started = _now()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _dealt(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        """The tests of each file that is still free when its turn comes."""
        mine: dict[str, bool] = {}
        for item in items:
            file = _file(item)
            if file not in mine:
                mine[file] = self._take(file)
            if mine[file]:
                yield item

    def _take(self, file: str) -> bool:
        """Whether the file is this run's."""
        try:
            self._entry(file).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _store(self, last: pytest.Item, started: tuple[float, float]) -> None:
        """Write the result of a file whose last test has run."""
        file = _file(last)
        outcomes = {test: how for test, how in self._outcomes.items() if test.partition("::")[0] == file}
        wall_s, cpu_s = (round(now - before, 2) for now, before in zip(_now(), started, strict=True))
        result = Result(
            passed=sum(not how for how in outcomes.values()),
            failed=[test for test, how in outcomes.items() if how == "failed"],
            skipped=[f"{test}: {how}" for test, how in outcomes.items() if how.startswith("skipped")],
            wall_s=wall_s,
            cpu_s=cpu_s,
        )
        whole = self._entry(f".{file}")
        whole.write_text(json.dumps(asdict(result)), encoding="utf-8")
        whole.replace(self._entry(file))

    def _entry(self, file: str) -> Path:
        return self._shares / file.replace("/", ".")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the directory that the runs share."""
    parser.addoption("--shares", type=Path, required=True, help="directory that all runs share, empty at first")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what pytest compiles, whatever PYTHONDONTWRITEBYTECODE says: the next run collects the same files, in half
    the time."""
    sys.dont_write_bytecode = False
    config.pluginmanager.register(Sharing(config.getoption("--shares")), "sharing of test files")


def read_results(shares: Path) -> dict[str, Result | None]:
    """The entries by file name; None for files whose tests have not all run."""
    found: dict[str, Result | None] = {}
    for entry in sorted(shares.iterdir()):
        if not entry.name.startswith("."):
            text = entry.read_text(encoding="utf-8")
            found[entry.name] = Result(**json.loads(text)) if text else None
    return found


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _now() -> tuple[float, float]:
    """Seconds on the clock, and of a core."""
    return time.monotonic(), sum(os.times()[:4]) + Popen.used_cpu_s

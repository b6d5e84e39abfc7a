"""Deal test files out to several runs of pytest, and store what came of each file.

    pytest -p tests.sharing --shares=DIR FILE ...        the same files, in the same order, and the same DIR in each
    pytest -p tests.sharing --shares=DIR --fork=LOG ...  the same in two processes; the second one prints to LOG

Each run takes the next file that no run has taken. To import and collect all of them takes some seconds of a core, and
a fork does not do it again. DIR gets an entry for each file: empty while its tests run, then the file's result as JSON
(`Result`). Files that have an entry are not run, so a run that was interrupted can be resumed: remove the entries that
are empty.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

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

    def __init__(self, shares: Path, forks: list[Path]) -> None:
        self._shares, self._forks = shares, forks
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
        """Fork, and run what falls to each run. Replaces pytest's own loop over all tests."""
        if session.config.option.collectonly:
            return None
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        children = fork_runs(session.config, self._forks)
        end_runs_on_sigterm(children)
        try:
            self._run(session)
        finally:
            statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if unusual := {*statuses} - {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            raise RuntimeError(f"a fork of this run ended with exit status {unusual.pop()}")
        return True

    def _run(self, session: pytest.Session) -> None:
        """Run what falls to this run."""
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


def fork_runs(config: pytest.Config, logs: list[Path]) -> list[int]:
    """Fork a run for each log, with temporary directories of its own; the process ids, none in a fork."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()  # its files would be shared with the forks
    gc.freeze()
    children: list[int] = []
    for number, log in enumerate(logs, 2):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            children.clear()
            with log.open("wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            if config.option.basetemp is not None:
                config.option.basetemp = Path(config.option.basetemp).with_name(str(number))
            config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
            break
        children.append(child)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    return children


def end_runs_on_sigterm(children: list[int]) -> None:
    """Let SIGTERM end this run and its forks as Ctrl-C does, which a terminal sends to all of them."""
    own = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a process that a test has forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the directory that the runs share, and forks."""
    parser.addoption("--shares", type=Path, required=True, help="directory that all runs share, empty at first")
    parser.addoption("--fork", type=Path, action="append", default=[], help="fork a run that prints to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what pytest compiles, whatever PYTHONDONTWRITEBYTECODE says: the next run collects the same files, in half
    the time."""
    sys.dont_write_bytecode = False
    config.pluginmanager.register(
        Sharing(config.getoption("--shares"), config.getoption("--fork")), "sharing of test files"
    )


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

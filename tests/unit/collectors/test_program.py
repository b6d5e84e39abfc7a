"""The collector's loop on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.collectors import program
from ffdl_batch.collectors.program import Collector, World
from ffdl_batch.collectors.record_file import Ledger, open_ledger
from ffdl_batch.collectors.source import Harvest, State
from ffdl_batch.domain.metrics.records import Measure, MetricRecord
from tests.unit.collectors.rig import Told, spec_for

RECORD = MetricRecord("t", 0, 0, "", "g", {}, {"n": Measure("INT", "1")})


class Script:
    """A source that does what it is told, and a world in which time passes by sleeping."""

    def __init__(self, base: Path, *polls: Harvest | OSError) -> None:
        self.spec = spec_for(base / "logs")
        self.now_s = 0.0
        self.finals: list[bool] = []
        self.polled_at: list[float] = []
        self.said: list[Mapping[str, Any]] = []
        self.told = Told()
        self.stop_at_s = 0.0
        self.poll_takes_s = 0.0
        self.alone_at_s = 1e9
        self._polls = list(polls)
        self.ledger: Ledger = open_ledger(self.spec.out)[0]

    def poll(self, final: bool) -> Harvest:
        self.finals.append(final)
        self.polled_at.append(self.now_s)
        self.now_s += self.poll_takes_s
        step = self._polls.pop(0) if self._polls else Harvest([], False)
        if isinstance(step, OSError):
            raise step
        return step

    def state(self) -> State:
        return {"polls": len(self.finals)}

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self.stop_at_s:
            Path(self.spec.stop_file).touch()
        assert self.now_s < 10_000

    def run(self, stop_at_s: float = 0.0) -> int:
        self.stop_at_s = stop_at_s
        if stop_at_s == 0:
            Path(self.spec.stop_file).touch()
        world = World(lambda: self.now_s, self.sleep, self.said.append, lambda: self.now_s >= self.alone_at_s)
        try:
            return Collector(self.spec, self, self.ledger, self.told.notes(), world).run()
        finally:
            self.ledger.close()

    @property
    def lines(self) -> int:
        return len(Path(self.spec.out).read_text().splitlines())


def test_collector_ends_when_stop_file_exists_and_all_is_read(tmp_path: Path) -> None:
    script = Script(tmp_path, Harvest([RECORD], True), Harvest([RECORD, RECORD], True), Harvest([RECORD], False))
    assert script.run() == program.EXIT_DONE
    assert script.lines == 4
    assert script.finals == [True, True, True]
    assert script.said == [{"event": "done", "records": 4, "notes": {}}]


def test_collector_ends_at_once_when_its_parent_is_gone(tmp_path: Path) -> None:
    script = Script(tmp_path, Harvest([RECORD], False))
    script.alone_at_s = 3.0
    assert script.run(stop_at_s=60) == program.EXIT_ALONE
    assert script.lines == 1 and script.now_s < 4.0 and script.said == []


def test_collector_ends_when_output_reaches_size_limit(tmp_path: Path) -> None:
    script = Script(tmp_path, *[Harvest([RECORD], True)] * 50)
    script.spec = replace(script.spec, max_bytes=300)
    assert script.run(stop_at_s=60) == program.EXIT_DONE
    assert 300 <= Path(script.spec.out).stat().st_size < 600
    assert script.told.kinds == ["full"] and script.said[-1]["records"] == script.lines


def test_collector_lengthens_pauses_while_idle(tmp_path: Path) -> None:
    script = Script(tmp_path, Harvest([RECORD], False))
    assert script.run(stop_at_s=60) == program.EXIT_DONE
    pauses = [later - earlier for earlier, later in zip(script.polled_at, script.polled_at[1:], strict=False)]
    assert pauses[0] < pauses[1] < pauses[2] and max(pauses) == program.MOST_PAUSE_S
    assert len(script.finals) < 25
    assert script.now_s <= 60.5


def test_collector_polls_less_often_if_polls_are_slow(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.poll_takes_s = 2
    script.run(stop_at_s=100)
    assert len(script.finals) <= 5


def test_collector_retries_unreadable_source_and_reports_it_once(tmp_path: Path) -> None:
    script = Script(tmp_path, OSError(116, "stale"), OSError(116, "stale"), Harvest([RECORD], False))
    assert script.run() == program.EXIT_DONE
    assert script.lines == 1
    assert script.told.kinds == ["unreadable"]


def test_collector_exits_with_read_error_only_after_stop_file(tmp_path: Path) -> None:
    script = Script(tmp_path, *[OSError(116, "stale")] * 100)
    assert script.run(stop_at_s=100) == program.EXIT_CANNOT_READ
    assert 100 <= script.now_s < 110


def test_collector_keeps_records_until_they_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(tmp_path, Harvest([RECORD], False))
    whole: Callable[[Ledger], None] = Ledger.complete
    tries: list[int] = []

    def complete(ledger: Ledger) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise OSError(28, "full")
        whole(ledger)

    monkeypatch.setattr(Ledger, "complete", complete)
    assert script.run() == program.EXIT_DONE
    assert script.lines == 1 and script.told.kinds == ["unwritable"]
    assert script.said[0]["records"] == 1


def test_collector_exits_with_write_error_only_after_stop_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(_ledger: Ledger) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(Ledger, "complete", complete)
    script = Script(tmp_path, Harvest([RECORD], False))
    assert script.run(stop_at_s=50) == program.EXIT_CANNOT_WRITE
    assert script.finals == [False]
    assert script.now_s >= 50


def test_collector_writes_no_position_file_without_records(tmp_path: Path) -> None:
    script = Script(tmp_path, *[Harvest([], True)] * 50)
    assert script.run() == program.EXIT_DONE
    assert len(script.finals) == 51 and not Path(f"{script.spec.out}.position").exists()

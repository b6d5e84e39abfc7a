"""The cell that tells controllers what is wanted of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from ffdl_batch.domain.formats import FORMAT
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import Wish
from ffdl_batch.services.control import (
    Control,
    ControlWish,
    Drill,
    fence_earlier,
    read_control,
    read_drill,
    write_control,
)
from tests.unit.services.conftest import Site

NEW = {"attempt": 1, "wish": "", "drill": "", "run": 0, "given_up": None, "format": FORMAT}


def cell(site: Site, job: Job) -> object:
    return json.loads(Path(site.attempt(job).control).read_text())


def test_control_cell_of_new_attempt_has_number_and_no_request(site: Site) -> None:
    job = site.deployed()
    assert read_control(site.attempt(job)) == Control(1)


def test_write_control_keeps_request_and_drill_independent(site: Site) -> None:
    job = site.deployed()
    assert write_control(site.platform.root, job, wish=Wish.HALT)
    assert write_control(site.platform.root, job, drill=Drill.NODE_FAIL)
    assert cell(site, job) == {**NEW, "wish": "halt", "drill": "node-fail"}
    assert write_control(site.platform.root, job, wish=Wish.NONE)
    assert cell(site, job) == {**NEW, "drill": "node-fail"}
    assert Path(site.attempt(job).control).stat().st_mode & 0o777 == 0o600


def test_read_drill_applies_only_to_current_run(site: Site) -> None:
    """The scheduler may start the same attempt anew: what interrupts that run is none of the drill's."""
    job = site.deployed()
    attempt = site.attempt(job)
    for run, drill in ((1, Drill.TIMEOUT), (2, Drill.PREEMPT)):
        Path(attempt.run_claim(run)).mkdir()
        assert read_drill(attempt) is Drill.NONE
        write_control(site.platform.root, job, drill=drill)
        assert (read_drill(attempt), read_control(attempt).run) == (drill, run)
    write_control(site.platform.root, job, drill=Drill.NONE)
    assert read_control(attempt) == Control(1)


def test_write_control_does_not_rewrite_same_value(site: Site) -> None:
    job = site.deployed()
    write_control(site.platform.root, job, wish=Wish.CANCEL)
    before = Path(site.attempt(job).control).stat().st_ino
    assert write_control(site.platform.root, job, wish=Wish.CANCEL)
    assert Path(site.attempt(job).control).stat().st_ino == before


def test_write_control_returns_false_without_attempt_directory(site: Site) -> None:
    job = site.accept()
    assert not write_control(site.platform.root, job, wish=Wish.HALT)
    assert not write_control(site.platform.root, replace(job, attempt=1), wish=Wish.HALT)
    assert read_control(site.attempt(job)) == Control()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"attempt": "x"}', '{"wish": "dance"}'])
def test_write_control_replaces_damaged_cell(site: Site, text: str) -> None:
    job = site.deployed()
    Path(site.attempt(job).control).write_text(text)
    assert read_control(site.attempt(job)) == Control()
    write_control(site.platform.root, job, wish=Wish.HALT)
    assert read_control(site.attempt(job)) == Control(1, ControlWish.HALT)


def test_control_fence_writes_newer_attempt_into_existing_cells(site: Site) -> None:
    job = site.deployed()
    write_control(site.platform.root, job, wish=Wish.HALT)
    assert fence_earlier(site.platform.root, job) == 0
    third = replace(job, attempt=3)  # the second never had a directory
    assert fence_earlier(site.platform.root, third) == 1
    assert read_control(site.attempt(job)) == Control(3, ControlWish.HALT)
    write_control(site.platform.root, job, drill=Drill.PREEMPT)
    assert read_control(site.attempt(job)).attempt == 3, "an older row does not lift the fence"


def test_write_control_loses_no_update_from_concurrent_threads(site: Site) -> None:
    job = site.deployed()

    def wish() -> None:
        for word in [Wish.NONE, Wish.HALT] * 25:
            write_control(site.platform.root, job, wish=word)

    def play() -> None:
        for note in [Drill.NONE, Drill.PREEMPT] * 25:
            write_control(site.platform.root, job, drill=note)

    threads = [Thread(target=wish), Thread(target=play)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_control(site.attempt(job)) == Control(1, ControlWish.HALT, Drill.PREEMPT)
    leftovers = [path.name for path in Path(site.attempt(job).path).iterdir() if path.name.startswith(".control")]
    assert leftovers == []

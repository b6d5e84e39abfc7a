"""Node controllers copy what root's program found on their node during their attempt, and wait for its next look where
a learner failed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.outcome.controller_events import EventKind
from tests.contract.controller_rig import Rig
from tests.contract.controller_rig import rig as running
from tests.unit.controller.test_health import finding, lasting


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path) as made:
        yield made


def place(rig: Rig, *lines: str) -> Path:
    directory = rig.base / "health"
    directory.mkdir()
    (directory / "incidents").write_text("".join(lines))
    return directory


def told(rig: Rig) -> list[Mapping[str, Any]]:
    events = [event for event in rig.events() if event.kind is EventKind.HEALTH]
    return [json.loads(line) for event in events for line in str(event.fields["lines"]).split("\n")]


def texts(rig: Rig) -> list[str]:
    return [str(one["text"]) for one in told(rig)]


def test_health_findings_during_attempt_are_recorded_once(rig: Rig) -> None:
    long_ago = finding("an hour ago", time.time() - 3600)
    directory = place(rig, long_ago, finding("half a minute ago", time.time() - 30), "no finding\n")
    rig.write("sleep 1; echo done", health=str(directory))
    assert rig.run() == 0
    assert texts(rig) == ["half a minute ago"]
    assert told(rig)[0]["device"] == "0000:3b:00"


def test_controller_waits_for_health_finding_after_learner_failure(rig: Rig) -> None:
    directory = place(rig)
    (directory / "looked").write_text("15\n")
    os.utime(directory / "looked", (1.0, 1.0))
    rig.write("exit 3", health=str(directory))

    def look() -> None:
        give_up = time.monotonic() + 40
        while not any(event.kind is EventKind.STORED for event in rig.events()) and time.monotonic() < give_up:
            time.sleep(0.05)
        with (directory / "incidents").open("a") as file:
            file.write(finding("GPU has fallen off the bus"))
        (directory / "looked").write_text("15\n")

    program = threading.Thread(target=look)
    program.start()
    rig.run()
    program.join()
    assert rig.final().exit_code == 3
    assert texts(rig) == ["GPU has fallen off the bus"]


def test_health_records_lasting_finding_of_this_boot_when_learner_failed(rig: Rig) -> None:
    directory = place(rig)
    (directory / "lasting").write_text(lasting("off the bus") + lasting("of another boot", "b") + "rubbish\n[]\n")
    (directory / "looked").write_text("0\n")
    rig.write("exit 3", health=str(directory))
    rig.run()
    assert texts(rig) == ["off the bus"]
    assert all(one["lasts"] and one["at"] < time.time() - 80000 for one in told(rig))


def test_health_records_lasting_finding_when_model_cannot_be_loaded(rig: Rig) -> None:
    directory = place(rig)
    (directory / "lasting").write_text(lasting("stale"))
    (directory / "looked").write_text("0\n")
    rig.write("echo done", health=str(directory), model_archive=str(rig.base / "nowhere.zip"))
    assert rig.run() != 0
    assert texts(rig) == ["stale"]

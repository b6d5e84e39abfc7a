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

from ffdl_batch.controller.node.health import BOOT_ID, FINDINGS_MOST, LASTING_MOST, Health
from ffdl_batch.controller.record.journal import Journal
from ffdl_batch.domain.events import EventKind
from tests.contract.controller_rig import Rig
from tests.contract.controller_rig import rig as running


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path) as made:
        yield made


def finding(text: str, at: float | None = None) -> str:
    body = {
        "at": time.time() if at is None else at,
        "kind": "gpu",
        "device": "0000:3b:00",
        "text": text,
        "boot_id": "b",
    }
    return json.dumps(body) + "\n"


def lasting(text: str, boot_id: str = "") -> str:
    """A line of what lasts, for a day by now."""
    body = json.loads(finding(text, time.time() - 86400.0))
    boot_id = boot_id or Path(BOOT_ID).read_text().strip()
    return json.dumps({**body, "boot_id": boot_id, "lasts": True, "drains": True}) + "\n"


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


def test_health_records_nothing_without_health_directory(rig: Rig) -> None:
    rig.write("echo done", health=str(rig.base / "nowhere"))
    assert rig.run() == 0
    assert texts(rig) == []
    assert "findings" not in (rig.base / "controller.err").read_text()


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


def test_health_records_only_new_findings_up_to_limit(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "node-0.jsonl"), "node-0")
    directory = tmp_path / "health"
    directory.mkdir()
    health = Health(str(directory), journal)
    health.look()
    assert journal.events == []
    (directory / "incidents").write_text("".join(finding(f"number {number}") for number in range(40)))
    health.look()
    health.look()
    (directory / "incidents").rename(directory / "incidents.1")
    (directory / "incidents").write_text("".join(finding(f"number {number}") for number in range(40, 100)))
    health.look()
    lines = [str(event.fields["lines"]).split("\n") for event in journal.events]
    assert [len(some) for some in lines] == [40, 20]
    assert len({line for some in lines for line in some}) == 60


def test_health_read_is_rate_limited_unless_forced(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "node-0.jsonl"), "node-0")
    directory = tmp_path / "health"
    directory.mkdir()
    health = Health(str(directory), journal)
    health.look_again()
    (directory / "incidents").write_text(finding("new"))
    health.look_again()
    assert journal.events == []
    health.look()
    assert len(journal.events) == 1


def test_health_records_finding_at_attempt_end_after_many_others(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "node-0.jsonl"), "node-0")
    directory = tmp_path / "health"
    directory.mkdir()
    health = Health(str(directory), journal)
    now = time.time()
    noise = "".join(finding(f"number {number}", now + number) for number in range(FINDINGS_MOST))
    (directory / "incidents").write_text(noise)
    health.look()
    later = finding("an hour later", now + 3600.0) + finding("GPU has fallen off the bus", now + 7200.0)
    (directory / "incidents").write_text(noise + later)
    health.look()
    assert len(journal.events) == 1
    health.await_look(now + 7190.0, True, lambda: False)
    health.await_look(now + 7190.0, True, lambda: False)
    [last] = [json.loads(str(event.fields["lines"])) for event in journal.events[1:]]
    assert last["text"] == "GPU has fallen off the bus"


@pytest.mark.parametrize(("script", "expected"), [("exit 3", ["off the bus"]), ("echo done", [])])
def test_health_records_lasting_finding_only_when_learner_failed(rig: Rig, script: str, expected: list[str]) -> None:
    directory = place(rig)
    (directory / "lasting").write_text(lasting("off the bus") + lasting("of another boot", "b") + "rubbish\n[]\n")
    (directory / "looked").write_text("0\n")
    rig.write(script, health=str(directory))
    rig.run()
    assert texts(rig) == expected
    assert all(one["lasts"] and one["at"] < time.time() - 80000 for one in told(rig))


def test_health_records_lasting_finding_when_model_cannot_be_loaded(rig: Rig) -> None:
    directory = place(rig)
    (directory / "lasting").write_text(lasting("stale"))
    (directory / "looked").write_text("0\n")
    rig.write("echo done", health=str(directory), model_archive=str(rig.base / "nowhere.zip"))
    assert rig.run() != 0
    assert texts(rig) == ["stale"]


def test_health_does_not_duplicate_lasting_finding_as_incident(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "node-0.jsonl"), "node-0")
    directory, now = tmp_path / "health", time.time()
    directory.mkdir()
    (directory / "looked").write_text("15\n")
    (directory / "incidents").write_text(finding("off the bus", now))
    (directory / "lasting").write_text(json.dumps({**json.loads(lasting("off the bus")), "at": now}) + "\n")
    Health(str(directory), journal).look(now + 5.0, failed=True)
    assert len(str(journal.events[0].fields["lines"]).split("\n")) == 1


def test_health_records_lasting_findings_only_after_failure_and_recent_check(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "node-0.jsonl"), "node-0")
    directory = tmp_path / "health"
    directory.mkdir()
    health, now = Health(str(directory), journal), time.time()
    (directory / "lasting").write_text("".join(lasting(f"number {number}") for number in range(LASTING_MOST + 5)))
    health.look(now, failed=True)
    assert journal.events == []  # nobody looks here: who knows whether it lasts still
    (directory / "looked").write_text("15\n")
    os.utime(directory / "looked", (now - 3600.0, now - 3600.0))
    health.look(now, failed=True)
    assert journal.events == []
    os.utime(directory / "looked")
    health.look(now)
    assert journal.events == []  # nothing failed
    health.look(now, failed=True)
    (told,) = [str(event.fields["lines"]).split("\n") for event in journal.events]
    assert [json.loads(line)["text"] for line in told] == [f"number {number}" for number in range(LASTING_MOST)]

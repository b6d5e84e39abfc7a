"""What node controllers tell of what root's program found on their node."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.controller.node.health_findings import FINDINGS_MOST, LASTING_MOST, HealthFindings
from ffdl_batch.host import processes as host


def finding(text: str, at: float | None = None) -> str:
    at = time.time() if at is None else at
    return json.dumps({"at": at, "kind": "gpu", "device": "0000:3b:00", "text": text, "boot_id": "b"}) + "\n"


def lasting(text: str, boot_id: str = "") -> str:
    """A line of what lasts, for a day by now."""
    body = json.loads(finding(text, time.time() - 86400.0))
    boot_id = boot_id or host.boot_id()
    return json.dumps({**body, "boot_id": boot_id, "lasts": True, "drains": True}) + "\n"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "node-0.jsonl"), "node-0")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where root's program writes."""
    made = tmp_path / "health"
    made.mkdir()
    return made


@pytest.fixture
def health(directory: Path, journal: Journal) -> HealthFindings:
    return HealthFindings(str(directory), journal)


def test_health_records_nothing_without_health_directory(
    tmp_path: Path, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    health = HealthFindings(str(tmp_path / "nowhere"), journal)
    health.look()
    health.await_look(time.time(), True, lambda: False)
    assert (journal.events, capsys.readouterr().err) == ([], "")


def test_health_records_only_new_findings_up_to_limit(
    health: HealthFindings, directory: Path, journal: Journal
) -> None:
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


def test_health_read_is_rate_limited_unless_forced(health: HealthFindings, directory: Path, journal: Journal) -> None:
    health.look_again()
    (directory / "incidents").write_text(finding("new"))
    health.look_again()
    assert journal.events == []
    health.look()
    assert len(journal.events) == 1


def test_health_records_finding_at_attempt_end_after_many_others(
    health: HealthFindings, directory: Path, journal: Journal
) -> None:
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


def test_health_does_not_duplicate_lasting_finding_as_incident(
    health: HealthFindings, directory: Path, journal: Journal
) -> None:
    now = time.time()
    (directory / "looked").write_text("15\n")
    (directory / "incidents").write_text(finding("off the bus", now))
    (directory / "lasting").write_text(json.dumps({**json.loads(lasting("off the bus")), "at": now}) + "\n")
    health.look(now + 5.0, failed=True)
    assert len(str(journal.events[0].fields["lines"]).split("\n")) == 1


def test_health_records_lasting_findings_only_after_failure_and_recent_check(
    health: HealthFindings, directory: Path, journal: Journal
) -> None:
    now = time.time()
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

"""Nothing of an older attempt may write while a newer one does."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.controller.head import claim
from ffdl_batch.controller.head.claim import claim_attempt
from ffdl_batch.controller.head.earlier_attempts import (
    await_earlier,
    earlier_attempts,
    fence_older_attempts,
    upload_pending_results,
)
from ffdl_batch.domain.launch.launch_file import LaunchFile, encode
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar, encode_event
from ffdl_batch.host.processes import identity
from tests.unit.controller.rig import launch_file

JOB = "training-0a1b2c3d4"
FAR: dict[str, Scalar] = {"host": "elsewhere", "pid": 7, "boot_id": "b", "start_ticks": 1}


class Waited(Exception):
    """The wait would have gone on."""


def refuse(_: float) -> None:
    raise Waited


def make(tmp_path: Path, number: int, **control: object) -> LaunchFile:
    job = JobDir(str(tmp_path / JOB))
    attempt = job.attempt(number)
    Path(attempt.events).mkdir(parents=True)
    limits = Limits(heartbeat_s=10.0, fence_s=120.0)
    launch = launch_file(attempt.path, job_id=JOB, attempt=number, job_dir=job.path, limits=limits)
    Path(attempt.launch).write_text(encode(launch))
    Path(attempt.control).write_text(json.dumps({"attempt": number, **control}))
    return launch


def said(launch: LaunchFile, *events: tuple[EventKind, dict[str, Scalar]]) -> None:
    lines = [encode_event(Event(i, 1.0, "node-0", kind, body)) for i, (kind, body) in enumerate(events, 1)]
    Path(AttemptDir(launch.attempt_dir).event_file("node-0")).write_text("".join(lines))


def beat(launch: LaunchFile, age_s: float) -> None:
    attempt = AttemptDir(launch.attempt_dir)
    heartbeat = Path(attempt.heartbeat(0))
    heartbeat.touch()
    for path in (heartbeat, Path(attempt.event_file("node-0"))):
        at = path.stat().st_mtime - age_s
        os.utime(path, (at, at))


def silent(_: str) -> None:
    """Whoever is told has nothing to say."""


@pytest.fixture
def two(tmp_path: Path) -> tuple[LaunchFile, AttemptDir]:
    """An older attempt, and the directory of the new one."""
    return make(tmp_path, 1, requested_action="", drill=""), AttemptDir(make(tmp_path, 2).attempt_dir)


STARTED, ENDED = (EventKind.STARTED, FAR), (EventKind.ENDED, dict[str, Scalar]())


def waits(two: tuple[LaunchFile, AttemptDir]) -> bool:
    """Whether the new attempt has to wait for the older one."""
    try:
        await_earlier([two[0]], two[1], refuse, silent)
    except Waited:
        return True
    return False


@pytest.mark.parametrize(
    ("events", "age_s", "waited"),
    [
        ([STARTED, ENDED], 0.0, False),
        ([STARTED, ENDED, STARTED], 0.0, True),
        ([STARTED], 0.0, True),
        ([STARTED], 100.0, True),
        ([STARTED], 140.0, False),
    ],
)
def test_await_earlier_waits_for_remote_controller_until_it_has_ended_or_fence_time_is_over(
    two: tuple[LaunchFile, AttemptDir], events: list[tuple[EventKind, dict[str, Scalar]]], age_s: float, waited: bool
) -> None:
    assert not waits(two), "it never started"
    said(two[0], *events)
    beat(two[0], age_s)
    assert waits(two) is waited


def test_await_earlier_reports_reason_once_and_clears_it_at_end(two: tuple[LaunchFile, AttemptDir]) -> None:
    said(two[0], STARTED)
    beat(two[0], 0.0)
    told: list[str] = []
    left = [3]

    def pause(_: float) -> None:
        left[0] -= 1
        beat(two[0], 0.0 if left[0] else 1000.0)

    await_earlier([two[0]], two[1], pause, told.append)
    why = (
        "waiting for the controller of node 0 of attempt 1 (pid 7 on elsewhere); it did not report its end, "
        "and has certainly ended 135 s after its last sign of life"
    )
    assert (left, told) == ([0], [why, ""])
    await_earlier([two[0]], two[1], refuse, told.append)
    assert told == [why, ""]


def test_await_earlier_waits_for_local_controller_while_its_process_lives(two: tuple[LaunchFile, AttemptDir]) -> None:
    mine = identity(os.getpid())
    said(two[0], (EventKind.STARTED, mine))
    beat(two[0], 1000.0)
    assert waits(two)
    changed: tuple[dict[str, Scalar], ...] = ({**mine, "start_ticks": 1}, {**mine, "boot_id": "earlier"})
    for dead in changed:
        said(two[0], (EventKind.STARTED, dead))
        assert not waits(two)


def test_earlier_attempts_record_highest_newer_attempt_number(tmp_path: Path) -> None:
    make(tmp_path, 1, requested_action="halt", drill="")
    make(tmp_path, 2)
    third = make(tmp_path, 3)
    older = earlier_attempts(third)
    assert [launch.attempt for launch in older] == [1, 2]
    fence_older_attempts(older, 3)
    cells = [json.loads(Path(AttemptDir(launch.attempt_dir).control).read_text()) for launch in older]
    assert [cell["attempt"] for cell in cells] == [3, 3] and cells[0]["requested_action"] == "halt"
    fence_older_attempts(older, 2)
    assert json.loads(Path(AttemptDir(older[0].attempt_dir).control).read_text())["attempt"] == 3


def test_earlier_attempts_warns_about_damaged_and_skips_missing_attempts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, fourth = make(tmp_path, 1), make(tmp_path, 4)
    Path(AttemptDir(first.attempt_dir).launch).write_text("{")
    assert earlier_attempts(replace(fourth, attempt=4)) == []
    assert "not waited for" in capsys.readouterr().err


def test_pending_uploads_run_only_for_attempts_without_stored_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [make(tmp_path, number) for number in (1, 2, 3, 4)]
    Path(AttemptDir(made[0].attempt_dir).uploaded).write_text("{}")
    Path(AttemptDir(made[1].attempt_dir).final).write_text('{"stored": true}')
    Path(AttemptDir(made[2].attempt_dir).final).write_text('{"stored": false}')
    calls = tmp_path / "calls"
    monkeypatch.setattr(
        "ffdl_batch.controller.head.earlier_attempts.own_argv",
        lambda: ["sh", "-c", f'echo "$@" >> "{calls}"; exit 3', "x"],
    )
    upload_pending_results(made, lambda _: None)
    launches = [AttemptDir(launch.attempt_dir).launch for launch in made]
    assert calls.read_text().splitlines() == [f"upload --launch {launches[2]}", f"upload --launch {launches[3]}"]
    assert "attempt 3 exited with status 3; its upload is still pending" in capsys.readouterr().err


def test_pending_upload_process_is_killed_when_head_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path, 1)
    monkeypatch.setattr("ffdl_batch.controller.head.earlier_attempts.own_argv", lambda: ["sh", "-c", "exec sleep 600"])
    with pytest.raises(Waited):
        upload_pending_results([made], refuse)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [c for c in children if b"600" in Path(f"/proc/{c}/cmdline").read_bytes()]


# ------------------------------------------------------------------------------------------ which run gets an attempt


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return AttemptDir(str(tmp_path))


def test_claim_rejects_second_delivery_with_same_process_identity(attempt: AttemptDir) -> None:
    """Process ids start again in each namespace: two heads of one node may have the same id, start and boot."""
    assert claim_attempt(attempt, "101").run == 1
    second = claim_attempt(attempt, "102")
    assert (second.run, second.owner["native_id"]) == (0, "101")


def test_claim_succeeds_when_rename_result_is_lost(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    put = claim._rename_into_place

    def put_and_lose_the_answer(path: str, owner: dict[str, object]) -> bool:
        put(path, owner)
        return False

    monkeypatch.setattr(claim, "_rename_into_place", put_and_lose_the_answer)
    assert claim_attempt(attempt, "101").run == 1


def test_claim_admits_same_native_job_only_after_first_run_dies(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert claim_attempt(attempt, "101").run == 1
    monkeypatch.setattr(claim, "identity", lambda pid: {**identity(pid), "pid": pid + 1})
    assert claim_attempt(attempt, "101").run == 0
    monkeypatch.setattr(claim, "lives_here", lambda _: False)
    assert claim_attempt(attempt, "101").run == 2

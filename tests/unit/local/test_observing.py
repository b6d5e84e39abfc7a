"""What a local job's files say."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar, encode_event
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.host.processes import boot_id
from ffdl_batch.plugins import AdapterContext
from ffdl_local import adapter as adapter_module
from ffdl_local.adapter import create
from ffdl_local.job_state import observe_attempt
from ffdl_local.records import (
    EXIT,
    LOCK,
    STARTED,
    STATE,
    is_held,
    local_directory,
    process_stat,
    read_record,
    write_record,
)
from tests.file_modes import modes_count
from tests.planted_files import NO_FILES, NO_JSON, replace

HOST = "here"


def attempt(tmp_path: Path, **records: Mapping[str, object]) -> AttemptDir:
    directory = AttemptDir(str(tmp_path))
    local = local_directory(directory.path)
    local.mkdir()
    names = {"started": STARTED, "state": STATE, "exit": EXIT}
    for key, body in records.items():
        if key == "final":
            Path(directory.final).write_text(json.dumps(body))
        else:
            (local / names[key]).write_text(json.dumps(body))
    return directory


def test_local_observe_returns_none_for_unsubmitted_attempt(tmp_path: Path) -> None:
    assert observe_attempt(attempt(tmp_path), HOST) is None
    assert observe_attempt(AttemptDir(str(tmp_path / "nowhere")), HOST) is None


def test_local_observe_ignores_job_of_another_host_until_it_has_ended(tmp_path: Path) -> None:
    directory = attempt(tmp_path, started={"host": "there", "pid": 1})
    assert observe_attempt(directory, HOST) is None
    (local_directory(directory.path) / EXIT).write_text('{"status": 0, "at": 5.0}')
    seen = observe_attempt(directory, HOST)
    assert seen is not None and seen.end is EndCause.SUCCESS


@pytest.mark.parametrize(
    ("record", "final", "cause", "code", "number"),
    [
        ({"status": 0}, None, EndCause.SUCCESS, 0, None),
        ({"status": 9}, None, EndCause.FAILURE, 9, None),
        ({"status": -9}, None, EndCause.FAILURE, None, 9),
        ({"status": 124}, {"outcome": "timed_out"}, EndCause.TIMEOUT, 124, None),
        ({"status": 143, "cancelled": True}, {"outcome": "cancelled"}, EndCause.CANCELLED, 143, None),
        ({"status": None, "cancelled": True}, None, EndCause.CANCELLED, None, None),
        ({"status": 0, "cancelled": True}, {"outcome": "completed"}, EndCause.SUCCESS, 0, None),
    ],
)
def test_local_observe_maps_exit_record_to_end_cause(
    tmp_path: Path, record: dict[str, object], final: dict[str, object] | None,
    cause: EndCause, code: int | None, number: int | None,
) -> None:  # fmt: skip
    records: dict[str, Mapping[str, object]] = {"started": {"host": HOST, "pid": 1}, "exit": record}
    if final is not None:
        records["final"] = final
    seen = observe_attempt(attempt(tmp_path, **records), HOST)
    assert seen is not None
    assert (seen.phase, seen.end, seen.exit_code, seen.exit_signal) == (Phase.ENDED, cause, code, number)


def test_local_observe_has_warning_of_supervisor_while_job_runs_and_after_its_end(tmp_path: Path) -> None:
    state: Mapping[str, object] = {"phase": "running", "head": os.getpid(), "at": 3.0, "warning": "of output"}
    ended: Mapping[str, object] = {"status": 0, "at": 2.0, "warning": "of output"}
    directory = attempt(tmp_path, started={"host": HOST, "pid": 1}, exit=ended)
    seen = observe_attempt(directory, HOST)
    assert seen is not None and seen.warning == "of output"
    local = local_directory(directory.path)
    (local / EXIT).unlink()
    (local / STATE).write_text(json.dumps(state))
    with (local / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen = observe_attempt(directory, HOST)
    assert seen is not None and (seen.phase, seen.warning) == (Phase.RUNNING, "of output")


def test_local_observe_reports_node_failure_for_vanished_job_without_final_record(tmp_path: Path) -> None:
    directory = attempt(tmp_path, started={"host": HOST, "pid": 1}, state={"phase": "running"})
    seen = observe_attempt(directory, HOST)
    assert seen is not None and (seen.phase, seen.end) == (Phase.ENDED, EndCause.NODE_FAIL)
    for outcome in ("completed", "halted"):
        Path(directory.final).write_text(json.dumps({"outcome": outcome, "at": 7.0}))
        seen = observe_attempt(directory, HOST)
        assert seen is not None and (seen.end, seen.ended_at) == (EndCause.SUCCESS, 7.0)


def test_local_observe_dates_killed_attempt_by_last_sign_of_life(tmp_path: Path) -> None:
    """A record that somebody else wrote in the head's place later is none."""
    directory = attempt(tmp_path, started={"host": HOST, "pid": 1}, state={"phase": "running", "at": 10.0})
    log = Path(directory.training_log(1))
    for made in (Path(directory.events), log.parent):
        made.mkdir(parents=True)
    for path, at in ((Path(directory.heartbeat(0)), 20.0), (Path(directory.event_file("node-0")), 15.0), (log, 24.0)):
        path.touch()
        os.utime(path, (at, at))
    for final in ({}, {"outcome": "completed", "at": 90.0}):
        Path(directory.final).write_text(json.dumps(final))
        seen = observe_attempt(directory, HOST)
        assert seen is not None and (seen.started_at, seen.ended_at) == (10.0, 24.0)


def killed(tmp_path: Path, **learner: Scalar) -> AttemptDir:
    """An attempt whose controllers were killed at 20, after they had started a learner."""
    directory = attempt(tmp_path, started={"host": HOST, "pid": 1}, state={"phase": "running", "at": 10.0})
    for made in (directory.events, directory.state):
        Path(made).mkdir()
    says(directory, EventKind.LEARNER_STARTED, **learner)
    return directory


def says(directory: AttemptDir, kind: EventKind, **fields: Scalar) -> None:
    file = Path(directory.event_file("node-0"))
    lines = file.read_text().count("\n") if file.exists() else 0
    with file.open("a") as out:
        out.write(encode_event(Event(lines + 1, 15.0, "node-0", kind, {"learner_id": 1, **fields})))
    os.utime(file, (20.0, 20.0))


def ended_at(directory: AttemptDir) -> float:
    seen = observe_attempt(directory, HOST)
    assert seen is not None and seen.ended_at is not None
    return seen.ended_at


def test_local_observe_dates_end_by_learner_that_outlived_controllers(tmp_path: Path) -> None:
    directory = killed(tmp_path, pid=2**22 + 1, boot_id=boot_id(), start_ticks=1)
    assert ended_at(directory) == 20.0
    word = Path(directory.state, ".ended-1")
    word.write_text("0\n")
    os.utime(word, (28.0, 28.0))
    assert ended_at(directory) == 28.0
    ahead = time.time() + 3600
    os.utime(word, (ahead, ahead))
    assert ended_at(directory) <= time.time(), "a file system's clock may be ahead"


def test_local_observe_dates_end_now_while_a_learner_is_alive(tmp_path: Path) -> None:
    stat = process_stat(os.getpid())
    assert stat is not None
    own: dict[str, Scalar] = {"pid": os.getpid(), "boot_id": boot_id(), "start_ticks": stat[2]}
    directory = killed(tmp_path, **own)
    before = time.time()
    assert before <= ended_at(directory) <= time.time()
    for other in ({"boot_id": "another"}, {"start_ticks": stat[2] + 1}):
        says(directory, EventKind.LEARNER_STARTED, **{**own, **other})
        assert ended_at(directory) == 20.0
    says(directory, EventKind.LEARNER_STARTED, **own)
    assert ended_at(directory) >= before
    says(directory, EventKind.LEARNER_ENDED, exit_code=0)
    assert ended_at(directory) == 20.0


def test_local_observe_reports_live_job_while_lock_is_held(tmp_path: Path) -> None:
    directory = attempt(tmp_path, started={"host": HOST, "pid": os.getpid()}, state={"phase": "pending"})
    local = local_directory(directory.path)
    lock = os.open(local / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen = observe_attempt(directory, HOST)
        assert seen is not None and seen.phase is Phase.PENDING
        (local / STATE).write_text(json.dumps({"phase": "running", "head": os.getpid(), "at": 3.0}))
        seen = observe_attempt(directory, HOST)
        assert seen is not None and (seen.phase, seen.started_at) == (Phase.RUNNING, 3.0)
    finally:
        os.close(lock)


def test_process_stat_returns_parent_and_start_time_of_live_process() -> None:
    stat = process_stat(os.getpid())
    assert stat is not None and stat[1] == os.getppid() and stat[2] > 0
    assert process_stat(2**22 + 1) is None


@pytest.mark.parametrize("kind", [*NO_FILES, *NO_JSON])
@pytest.mark.parametrize("name", [STARTED, STATE, EXIT, LOCK, "final.json", "events/node-0.jsonl", ""])
def test_local_observe_ends_attempt_with_damaged_file(tmp_path: Path, name: str, kind: str) -> None:
    found = attempt(tmp_path, started={"host": HOST, "pid": 1}, state={"phase": "running", "head": "x", "at": 2.0})
    Path(found.claim).mkdir()
    damaged = Path(found.path, name) if "/" in name or name == "final.json" else local_directory(found.path) / name
    replace(damaged, {**NO_FILES, **NO_JSON}[kind])
    seen = observe_attempt(found, HOST)
    assert seen is not None
    assert (seen.phase, seen.end) == (Phase.ENDED, EndCause.NODE_FAIL)


def test_local_observe_shows_running_attempt_whose_lock_was_removed(tmp_path: Path) -> None:
    stat = process_stat(os.getpid())
    assert stat is not None
    started = {"host": HOST, "pid": os.getpid(), "start_ticks": stat[2], "boot_id": boot_id()}
    seen = observe_attempt(attempt(tmp_path, started=started, state={"phase": "running"}), HOST)
    assert seen is not None
    assert seen.phase is Phase.RUNNING


@pytest.mark.parametrize("status", [10**12, -(10**12), "0", None, True])
def test_local_observe_ignores_exit_status_out_of_range(tmp_path: Path, status: object) -> None:
    seen = observe_attempt(attempt(tmp_path, started={"host": HOST}, exit={"status": status, "at": 10**15}), HOST)
    assert seen is not None
    assert (seen.exit_signal, seen.ended_at) == (None, None)
    assert seen.exit_code in (None, 1)


@pytest.mark.parametrize("kind", NO_FILES)
def test_local_record_replaces_planted_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "local" / EXIT
    for damaged in (path, path.parent):
        replace(damaged, NO_FILES[kind])
        assert not is_held(path)
        write_record(path, {"status": 0})
        assert read_record(path) == {"status": 0}


def test_local_adapter_observes_other_jobs_if_the_files_of_one_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = create({}, AdapterContext(str(tmp_path), "ada", os.getuid()))
    natives = [NativeId(f"training-00000000{number}-1") for number in range(3)]
    for native in natives:
        directory = AttemptDir(str(tmp_path / "jobs" / str(native)[:-2] / "attempt-1"))
        local_directory(directory.path).mkdir(parents=True)
        write_record(local_directory(directory.path) / STARTED, {"host": socket.gethostname(), "pid": 0})
        write_record(local_directory(directory.path) / EXIT, {"status": 0, "at": 5.0})
    read = observe_attempt

    def fails(attempt: AttemptDir, host: str) -> Observation | None:
        if str(natives[1])[:-2] in attempt.path:
            raise PermissionError(errno.EACCES, "Permission denied", attempt.path)
        return read(attempt, host)

    monkeypatch.setattr(adapter_module, "observe_attempt", fails)
    for _ in range(2):
        assert set(adapter.observe(natives)) == {natives[0], natives[2]}
    assert len([one for one in caplog.records if str(natives[1]) in one.getMessage()]) == 1


@pytest.mark.parametrize("closed", ["local/started.json", "local/lock", "local", "."])
def test_local_observe_opens_what_a_job_closed(closed: str, tmp_path: Path) -> None:
    directory = attempt(tmp_path, started={"host": HOST, "pid": os.getpid(), "start_ticks": 0}, state={})
    lock = local_directory(directory.path) / LOCK
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        Path(directory.path, closed).chmod(0)
        with modes_count():
            seen = observe_attempt(directory, HOST)
    assert seen is not None and seen.phase is Phase.PENDING

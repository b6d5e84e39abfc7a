"""Read what the files and processes of a local job show about its state, and why it waits. Writes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import find_text
from ffdl_batch.domain.outcome.controller_events import MAX_SIGNAL, Outcome, is_time
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.domain.pending.explanation import Ahead, Capacity, Explanation, Limit, Reason, WaitKind
from ffdl_local.processes import has_living_learners
from ffdl_local.records import EXIT, LOCK, STARTED, STATE, is_held, lives, local_directory, process_stat, read_record

_OUTCOMES = {
    Outcome.COMPLETED.value: EndCause.SUCCESS,
    Outcome.HALTED.value: EndCause.SUCCESS,
    Outcome.TIMED_OUT.value: EndCause.TIMEOUT,
    Outcome.CANCELLED.value: EndCause.CANCELLED,
}


def observe_attempt(attempt: AttemptDir, host: str) -> Observation | None:
    """Return the current state of the job; None if this machine cannot know it, because the job was never submitted or
    is another host's. Raises OSError if the files cannot be read."""
    directory = local_directory(attempt.path)
    started = read_record(directory / STARTED)
    if started is None and not Path(attempt.claim).is_dir():
        return None
    started = started or {"host": host}  # the record is damaged, or the job removed it
    ended = read_record(directory / EXIT)
    if ended:
        return _ended(attempt, ended, host)
    if started.get("host") != host:
        return None
    if is_held(directory / LOCK) or lives(started, "pid", "start_ticks"):
        return _living(attempt, started, host)
    ended = read_record(directory / EXIT)
    if ended:  # the job ended between the two checks
        return _ended(attempt, ended, host)
    return _vanished(attempt, directory, host)


def _living(attempt: AttemptDir, started: dict[str, Any], host: str) -> Observation:
    state = read_record(local_directory(attempt.path) / STATE) or {}
    # A supervisor whose disk is full could not say yet that the head runs; the head's claim says it, too.
    running = state.get("phase") == "running" or Path(attempt.claim).is_dir()
    pid = state.get("head") if running else started.get("pid")
    stat = process_stat(pid) if isinstance(pid, int) and pid > 0 else None
    stopped = stat is not None and stat[0] in "Tt"
    if not running:
        return Observation(
            Phase.PENDING, "PENDING", reason=str(state.get("reason", "")), submitted_at=_number(state, "submitted_at")
        )
    return Observation(
        phase=Phase.SUSPENDED if stopped else Phase.RUNNING,
        native_state="SUSPENDED" if stopped else "RUNNING",
        nodes=host,
        submitted_at=_number(state, "submitted_at"),
        started_at=_number(state, "at"),
        warning=str(state.get("warning", "")),
    )


def _ended(attempt: AttemptDir, record: dict[str, Any], host: str) -> Observation:
    status = record.get("status")
    final = read_record(Path(attempt.final)) or {}
    outcome = _OUTCOMES.get(str(final.get("outcome")))
    if status == 0:
        cause = EndCause.SUCCESS
    elif record.get("cancelled") or status is None:
        cause = EndCause.CANCELLED
    elif outcome in (EndCause.TIMEOUT, EndCause.CANCELLED):
        cause = outcome
    else:
        cause = EndCause.FAILURE
    return Observation(
        phase=Phase.ENDED,
        native_state=cause.value.upper(),
        end=cause,
        exit_code=status if isinstance(status, int) and 0 <= status <= 255 else None,
        exit_signal=-status if isinstance(status, int) and -MAX_SIGNAL <= status < 0 else None,
        nodes=host if status is not None else "",
        submitted_at=_number(record, "submitted_at"),
        started_at=_number(record, "started_at"),
        ended_at=_number(record, "at"),
        warning=str(record.get("warning", "")),
    )


def _vanished(attempt: AttemptDir, directory: Path, host: str) -> Observation:
    """Supervisor and head are gone and left no exit record: reboot, or KILL. The head's final record counts."""
    final = read_record(Path(attempt.final))
    cause = _OUTCOMES.get(str(final.get("outcome")), EndCause.FAILURE) if final else EndCause.NODE_FAIL
    state = read_record(directory / STATE) or {}
    return Observation(
        phase=Phase.ENDED,
        native_state=cause.value.upper(),
        end=cause,
        reason="" if final else "its processes are gone: the machine was restarted, or they were killed",
        nodes=host,
        submitted_at=_number(state, "submitted_at"),
        started_at=_number(state, "at") if state.get("phase") == "running" else None,
        ended_at=min((at for at in (_number(final or {}, "at"), _last_life(attempt)) if at is not None), default=None),
    )


def _last_life(attempt: AttemptDir) -> float | None:
    """When something of the attempt lived last: now, where a learner does that outlived its controllers, else when one
    of them wrote an event, a heartbeat, a line of a log, or what a learner's shell notes when its command ends."""
    now = time.time()
    if has_living_learners(attempt):
        return now
    found = [*Path(attempt.events).glob("*"), *Path(attempt.logs).glob("*/*"), *Path(attempt.state).glob("*")]
    times = [min(stat.st_mtime, now) for path in found if (stat := _stat(path)) is not None]
    return max(times, default=None)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, PermissionError):  # gone meanwhile, or in a directory that the job closed
        return None


def _number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if is_time(value) else None


_PLACE = "local"
_MOST = 4096
"""Maximum number of jobs and of GPUs of a machine."""
_TOKEN_BYTES, _NAMED = 100, 8


def explain(queue: Path, token: str, job: Mapping[str, Any], waits: bool) -> Explanation:
    """Explain why an attempt waits, from the files in `queue`. `token` is "" for a request that was not submitted.
    `job` has max_jobs, machine_gpus, and the requested gpus. `waits`: it has no slots yet. Raises OSError."""
    most, machine, wanted = (min(int(job[name]), _MOST) for name in ("max_jobs", "machine_gpus", "gpus"))
    held = [path for number in range(most) if is_held(path := queue / f"job-{number}")]
    gpus_busy = sum(is_held(queue / f"gpu-{number}") for number in range(machine))
    tickets = [path.name.partition("-")[2] for path in sorted((queue / "queue").glob("[0-9]*")) if is_held(path)]
    before = tickets.index(token) if token in tickets else len(tickets)
    is_full, has_gpus = len(held) >= most, machine - gpus_busy >= wanted
    room = Capacity(_PLACE, "", machine, machine - gpus_busy, 1, int(has_gpus and not is_full), 1, wanted)
    reason = None
    if waits and is_full and has_gpus:
        reason = _slots_used(most, len(held))
    elif waits:
        reason = Reason(WaitKind.TURN if before else WaitKind.RESOURCES)
    return Explanation(
        known_at=time.time(),
        reason=reason,
        partitions=(_PLACE,),
        position=before + 1 if waits else None,
        capacity=(room,),
        ahead=(Ahead(_PLACE, before, before, 0, len(tickets), len(held)),),
        figures={"job slots of this machine": _users_of(held, most)},
    )


def _slots_used(most: int, used: int) -> Reason:
    """Return the reason of a job that only waits for a job slot."""
    cure = (
        "wait until one of the jobs that use a slot ends. For more slots, raise max_jobs in [backend.local], run: ffdl "
        "daemon restart, and submit the job again, because max_jobs is read at the submission"
    )
    limit = Limit("machine", "job slots", most=str(most), used=str(used), cure=cure)
    return Reason(WaitKind.LIMIT, "max_jobs", limit=limit)


def _users_of(held: list[Path], most: int) -> str:
    """Return how many job slots are in use, and by which jobs, as far as their files say so."""
    tokens = (find_text(str(path), _TOKEN_BYTES) for path in held)
    jobs = sorted({token.rpartition("-")[0] for token in tokens if token.isascii() and token.isprintable()} - {""})
    named = ", ".join(jobs[:_NAMED]) + (f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else "")
    return f"{len(held)} of {most} in use{f', by {named}' if named else ''}"

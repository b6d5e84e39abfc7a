"""Reads from the events of an attempt what happened to each of its learners. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ffdl_batch.domain.job.views import LearnerState, LearnerView
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.learner_text import describe_end, name_learner
from ffdl_batch.domain.outcome.attempt_reports import latest_run
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, node_source
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StartedAgain:
    """A learner that failed and was started again."""

    learner_id: int
    at: float
    host: str
    end: Event
    number: int
    """Count of restarts by its node controller, over all runs of the attempt."""


def started_again(events: Sequence[Event]) -> list[StartedAgain]:
    """Return the restarted learners of an attempt, in the order of `events`. A learner whose controller died before it
    had started it again is left out: the next run starts all learners."""
    failed: dict[tuple[str, int], tuple[Event, int]] = {}
    counts: Counter[str] = Counter()
    hosts: dict[str, str] = {}
    found: list[StartedAgain] = []
    for event in events:
        learner_id = event.fields.get("learner_id")
        if event.kind is EventKind.STARTED:
            failed = {key: value for key, value in failed.items() if key[0] != event.source}
            hosts[event.source] = event.node
        elif not isinstance(learner_id, int):
            continue
        elif event.kind is EventKind.LEARNER_ENDED and event.fields.get("restarted"):
            counts[event.source] += 1
            failed[event.source, learner_id] = event, counts[event.source]
        elif event.kind is EventKind.LEARNER_STARTED and (event.source, learner_id) in failed:
            end = failed.pop((event.source, learner_id))
            found.append(StartedAgain(learner_id, event.at, hosts.get(event.source, ""), *end))
    return found


def describe_restart(one: StartedAgain, launch: LaunchFile | None) -> str:
    """Return ``learner 2 ended with exit code 7 and was started again (1 of 3)``; `launch` None = it cannot be read."""
    who = name_learner(launch, one.learner_id, one.host) if launch is not None else f"learner {one.learner_id}"
    count = f"{one.number} of {launch.restarts_max}" if launch is not None else str(one.number)
    fields = one.end.fields
    how = describe_end(fields.get("exit_code"), fields.get("signal"))
    return f"{who} {how}{_memory(one.end)} and was started again ({count})"


def _memory(end: Event) -> str:
    return " (out of memory)" if end.fields.get("out_of_memory") else ""


def hosts_of(events: Sequence[Event]) -> dict[str, str]:
    """Return the node on which each controller ran last, by the name that the scheduler knows."""
    return {event.source: event.node for event in events if event.kind is EventKind.STARTED}


def gpu_devices(events: Sequence[Event]) -> tuple[str, ...]:
    """Return the GPUs of the attempt's latest run, each as node and device file.

    If learners can open more device files than they have GPUs, the scheduler's GPU number replaces the file. Empty if
    the controllers did not check device files.
    """
    found: list[str] = []
    run = latest_run(events)
    nodes = hosts_of(run)
    for event in run:
        if event.kind is not EventKind.DEVICES:
            continue
        given, files = (str(event.fields.get(name) or "").split(",") for name in ("gpus", "files"))
        names = files if len(files) <= len(given) else given
        found += [f"{nodes.get(event.source, event.node)}:{name}" for name in names if name]
    return tuple(dict.fromkeys(found))


def learner_list(launch: LaunchFile, events: Sequence[Event], *, is_over: bool) -> tuple[LearnerView, ...]:
    """Return every learner of the attempt's latest run, by number. `is_over`: the attempt has ended."""
    run = latest_run(events)
    hosts, again = hosts_of(run), Counter(one.learner_id for one in started_again(run))
    last: dict[object, Event] = {}
    for event in run:
        if event.kind in (EventKind.LEARNER_STARTED, EventKind.LEARNER_ENDED):
            last[event.fields.get("learner_id")] = event
    return tuple(
        _view(launch, number, last.get(number), hosts, again[number], is_over=is_over)
        for number in range(1, launch.learners + 1)
    )


def _view(
    launch: LaunchFile, number: int, last: Event | None, hosts: dict[str, str], restarts: int, *, is_over: bool
) -> LearnerView:
    seat, fields = launch.seat_of(number), last.fields if last is not None else {}
    code, signal = fields.get("exit_code"), fields.get("signal")
    return LearnerView(
        number=number,
        state=_state(last, is_over=is_over),
        role=seat.role,
        index=seat.index,
        service=seat.service,
        name=f"{launch.names}-{number - 1}" if launch.names else "",
        node=hosts.get(node_source(seat.node), ""),
        exit_code=code if isinstance(code, int) else None,
        exit_signal=signal if isinstance(signal, int) else None,
        ended_by=str(fields.get("ended_by") or ""),
        restarts=restarts,
    )


def _state(last: Event | None, *, is_over: bool) -> LearnerState:
    if last is None:
        return LearnerState.WAITING
    if last.kind is EventKind.LEARNER_STARTED:
        return LearnerState.LOST if is_over else LearnerState.RUNNING
    return LearnerState.RESTARTING if last.fields.get("restarted") and not is_over else LearnerState.ENDED

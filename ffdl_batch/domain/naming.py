"""Words for a learner and for how it ended. Runs on Python 3.9."""

from __future__ import annotations

import signal

from ffdl_batch.domain.launch import LaunchFile


def name_learner(launch: LaunchFile, learner_id: int, host: str) -> str:
    """``learner 4 (ps 0, on n2)``: without a role where the job has none, and without `host` where it has one node, or
    that is not known ("")."""
    seat = launch.seat_of(learner_id)
    role = f"{seat.role} {seat.index}" if seat.role else ""
    place = f"on {host.partition('.')[0]}" if host and launch.nodes > 1 else ""
    beside = ", ".join(word for word in (role, place) if word)
    return f"learner {learner_id} ({beside})" if beside else f"learner {learner_id}"


def say_end(code: object, number: object) -> str:
    """How a process ended, by its exit code or the signal that killed it."""
    if isinstance(number, int):
        return f"was killed by {signal_name(number) or f'signal {number}'}"
    return f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """The name of a signal; "" where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""

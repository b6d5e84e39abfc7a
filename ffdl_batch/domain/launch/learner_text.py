"""Phrases about a learner and how it ended. Runs on Python 3.9."""

from __future__ import annotations

import signal

from ffdl_batch.domain.launch.launch_file import LaunchFile

KILLED_FOR_MEMORY = "was killed because it needed more memory than the job has"


def name_learner(launch: LaunchFile, learner_id: int, node: str) -> str:
    """Return ``learner 4 (ps 0, on n2)``, without a role if the job has none, and without `node` if the job has one
    node, or the node is not known ("")."""
    seat = launch.seat_of(learner_id)
    role = f"{seat.role} {seat.index}" if seat.role else ""
    place = f"on {node}" if node and launch.nodes > 1 else ""
    beside = ", ".join(word for word in (role, place) if word)
    return f"learner {learner_id} ({beside})" if beside else f"learner {learner_id}"


def describe_end(code: object, number: object) -> str:
    """Return how a process ended, from its exit code or the signal that killed it."""
    if isinstance(number, int):
        return f"was killed by {_signal_name(number) or f'signal {number}'}"
    if isinstance(code, int) and code > 128 and _signal_name(code - 128):
        return f"ended with exit code {code} (128 + {code - 128}: {_signal_name(code - 128)})"
    return f"ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""

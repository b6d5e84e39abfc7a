"""Pauses between tries, and an end to them."""

from __future__ import annotations

import threading

import pytest

from ffdl_batch.domain.staging import FaultClass
from ffdl_batch.staging.faults import Fault, Passing, Stopped
from ffdl_batch.staging.retries import LONGEST_PAUSE_S, Patience, pause_s


def test_pauses_double_and_are_spread() -> None:
    assert [pause_s(n, 1.0, 0.5) for n in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert pause_s(1, 1.0, 0.0) == 0.75
    assert pause_s(1, 1.0, 1.0) == 1.25
    assert pause_s(99, 1.0, 0.5) == LONGEST_PAUSE_S


class Failing:
    """Fails as often as told."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> str:
        if self.times:
            self.times -= 1
            raise Passing("for now")
        return "done"


def patience(told: list[tuple[str, float]], stop: threading.Event | None = None) -> Patience:
    return Patience(3, 0.0, lambda why, in_s, _cause: told.append((why, in_s)), stop or threading.Event())


def test_each_try_is_told() -> None:
    told: list[tuple[str, float]] = []
    assert patience(told).with_tries(Failing(2), "key") == "done"
    assert told == [("key: for now", 0.0)] * 2


def test_the_last_try_is_a_fault() -> None:
    told: list[tuple[str, float]] = []
    with pytest.raises(Fault, match=r"for now \(3 tries\)") as raised:
        patience(told).with_tries(Failing(3), "key")
    assert (raised.value.kind, raised.value.key, len(told)) == (FaultClass.NETWORK, "key", 2)


def test_one_try_is_not_counted() -> None:
    with pytest.raises(Fault) as raised:
        Patience(1, 0.0, lambda _why, _in_s, _cause: None, threading.Event()).with_tries(Failing(1))
    assert raised.value.cause == "for now"


def test_nothing_is_tried_once_another_worker_failed() -> None:
    stop = threading.Event()
    stop.set()
    failing = Failing(1)
    with pytest.raises(Stopped):
        patience([], stop).with_tries(failing)
    with pytest.raises(Stopped):
        patience([], stop).bear(1, Passing("for now"))
    assert failing.times == 1

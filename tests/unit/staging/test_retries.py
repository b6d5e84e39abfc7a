"""Pauses between tries, and an end to them."""

from __future__ import annotations

import threading

import pytest

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault, Retries, Stopped, TemporaryFailure


class Failing:
    """Fails as often as told."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> str:
        if self.times:
            self.times -= 1
            raise TemporaryFailure("for now")
        return "done"


def patience(told: list[tuple[str, float]], stop: threading.Event | None = None) -> Retries:
    return Retries(3, 0.0, lambda why, in_s, _cause: told.append((why, in_s)), stop or threading.Event())


def test_patience_reports_each_failed_try_before_success() -> None:
    told: list[tuple[str, float]] = []
    assert patience(told).call(Failing(2), "key") == "done"
    assert told == [("key: for now", 0.0)] * 2


def test_patience_raises_network_fault_after_last_try() -> None:
    told: list[tuple[str, float]] = []
    with pytest.raises(Fault, match=r"for now \(3 tries\)") as raised:
        patience(told).call(Failing(3), "key")
    assert (raised.value.kind, raised.value.key, len(told)) == (FaultClass.NETWORK, "key", 2)


def test_patience_error_omits_count_for_single_try() -> None:
    with pytest.raises(Fault) as raised:
        Retries(1, 0.0, lambda _why, _in_s, _cause: None, threading.Event()).call(Failing(1))
    assert raised.value.cause == "for now"


def test_patience_stops_before_first_try_when_other_worker_failed() -> None:
    stop = threading.Event()
    stop.set()
    failing = Failing(1)
    with pytest.raises(Stopped):
        patience([], stop).call(failing)
    with pytest.raises(Stopped):
        patience([], stop).pause_after(1, TemporaryFailure("for now"))
    assert failing.times == 1

"""Who may ask somebody that did not answer."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.circuit_breaker import Circuit, Permit
from ffdl_batch.host.backoff import growing_pause


def asked(circuit: Circuit, now: float = 0.0) -> tuple[Circuit, Permit]:
    circuit, permit = circuit.ask(now)
    assert permit is not None
    return circuit, permit


def opened(circuit: Circuit, *, now: float, pause_s: float = 10.0) -> Circuit:
    """The circuit after one more question that was not answered."""
    circuit, permit = asked(circuit, now)
    return circuit.failed(permit, f"failure at {now:g}", 1_000_000.0 + now, now + pause_s)


def test_circuit_permits_every_request_while_closed() -> None:
    circuit = Circuit()
    for _ in range(3):
        circuit, permit = circuit.ask(0.0)
        assert permit == Permit(0)
    assert not circuit.is_open


def test_circuit_opens_at_first_failure_and_permits_one_probe_after_pause() -> None:
    circuit = opened(Circuit(), now=100.0)
    assert (circuit.is_open, circuit.failures, circuit.since) == (True, 1, 1_000_100.0)
    assert circuit.cause == "failure at 100"
    assert not circuit.may_ask(109.9)
    assert circuit.ask(109.9) == (circuit, None)
    assert circuit.hurried().may_ask(100.0)
    circuit, permit = asked(circuit, 110.0)
    assert permit.is_probe
    assert not circuit.may_ask(1e9)
    assert circuit.ask(1e9)[1] is None


def test_circuit_counts_failed_probe_and_clears_failures_after_successful_one() -> None:
    circuit = opened(opened(Circuit(), now=100.0), now=110.0)
    assert (circuit.failures, circuit.since, circuit.cause) == (2, 1_000_100.0, "failure at 110")
    assert not circuit.may_ask(119.9)
    circuit, permit = asked(circuit, 120.0)
    circuit = circuit.succeeded(permit)
    assert (circuit.is_open, circuit.failures, circuit.cause) == (False, 0, "")
    assert circuit.ask(120.0)[1] is not None


def test_circuit_counts_simultaneous_failures_once_and_stays_open_after_success_of_earlier_request() -> None:
    circuit, permit = asked(Circuit())
    for number in range(8):
        circuit = circuit.failed(permit, f"{number}", 5.0, 1.0)
    assert (circuit.failures, circuit.cause) == (1, "0")
    assert circuit.succeeded(permit) == circuit


def test_circuit_stays_closed_after_late_failure_of_earlier_request() -> None:
    circuit, early = asked(Circuit())
    circuit, probe = asked(opened(circuit, now=1.0, pause_s=1.0), 2.0)
    closed = circuit.succeeded(probe)
    assert closed.failed(early, "late", 9.0, 99.0) == closed


def test_circuit_permits_next_probe_when_permit_is_returned() -> None:
    circuit, permit = asked(opened(Circuit(), now=0.0), 10.0)
    back = circuit.returned(permit)
    assert (back.is_open, back.failures) == (True, 1)
    assert back.ask(10.0)[1] is not None
    closed, plain = asked(Circuit())
    assert closed.returned(plain) == closed


@pytest.mark.parametrize(("failures", "pause"), [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (1000, 30.0)])
def test_growing_pause_doubles_up_to_limit(failures: int, pause: float) -> None:
    assert growing_pause(failures, 1.0, 30.0, 0.5) == pytest.approx(pause)


def test_growing_pause_spreads_with_random_value() -> None:
    pauses = [growing_pause(3, 1.0, 30.0, random / 100) for random in range(100)]
    assert min(pauses) == pytest.approx(3.0)
    assert max(pauses) == pytest.approx(4.98)
    assert len(set(pauses)) == 100


def test_circuit_logs_new_causes_rare_repetitions_and_recovery() -> None:
    circuit, told = Circuit(), []
    for number in range(1, 101):
        circuit, permit = asked(circuit)
        after = circuit.failed(permit, f"refused (pid {number})" if number < 90 else "no route", 1.0, 0.0)
        if after.is_worth_logging(circuit):
            told.append(number)
        assert not after.is_worth_logging(after)
        circuit = after
    assert told == [1, 4, 16, 64, 90]
    circuit, permit = asked(circuit)
    well = circuit.succeeded(permit)
    assert well.is_worth_logging(circuit) and not well.is_worth_logging(well)
    assert not circuit.returned(permit).is_worth_logging(circuit)

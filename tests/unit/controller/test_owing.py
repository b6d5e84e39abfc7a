"""Who stores what an attempt left that reaches no store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.controller.head.outcome import conclude, exit_status
from ffdl_batch.controller.head.owing import left_to_others
from ffdl_batch.domain.events import Event, FinalRecord, Outcome
from ffdl_batch.domain.launch import LaunchFile, Pod
from ffdl_batch.domain.staging import StoreAddress, StoreKind, Transfer
from tests.unit.controller.test_outcome import K, ended, ev, launch

STARTED = ev(K.LEARNER_STARTED, 1.5, learner_id=1)


def cut_off() -> LaunchFile:
    """In a pod that reaches no store, and has something to go there."""
    store = Transfer(StoreAddress(StoreKind.S3, container="out"), "out", "/j/a/results")
    return replace(launch(), pod=Pod("/pod", cut_off=True), uploads=(store,))


@pytest.mark.parametrize(
    ("events", "outcome", "later", "status"),
    [
        ([STARTED, ended()], Outcome.COMPLETED, True, 0),
        ([STARTED, ended(exit_code=3)], Outcome.FAILED, True, 3),
        ([STARTED, ended(ended_by="halt")], Outcome.HALTED, True, 0),
        ([STARTED, ended(exit_code=143, ended_by="time")], Outcome.TIMED_OUT, True, None),
        ([STARTED, ended(exit_code=143, ended_by="term")], Outcome.CANCELLED, False, None),
        ([ev(K.FAULT, 3.0, code="S302", message="gone")], Outcome.FAILED, False, None),
    ],
)
def test_pending_upload_is_deferred_unless_cancelled_or_not_started(
    events: list[Event], outcome: Outcome, later: bool, status: int | None
) -> None:
    told = conclude(cut_off(), events, terminated=outcome is Outcome.CANCELLED)
    assert (told.outcome, told.stored) == (outcome, False)
    record = FinalRecord("7", told.outcome, 4.0, told.stored, told.exit_code, told.exit_signal, told.error_code)
    final = left_to_others(cut_off(), record, lambda: events)
    assert final.stores_later is later
    assert status is None or exit_status(final) == status


def test_pending_upload_is_not_deferred_if_pod_reaches_stores() -> None:
    record = FinalRecord("7", Outcome.FAILED, 4.0, False, error_code="S303")
    near = replace(cut_off(), pod=Pod("/pod"))
    assert left_to_others(near, record, lambda: [STARTED, ended()]) == record

"""What the head of a gang of pods would have said, had it heard all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.events import Event, EventKind, FinalRecord, Outcome
from ffdl_batch.domain.launch import Pod
from ffdl_batch.services.leftovers import as_all_say
from tests.unit.controller.test_outcome import at_work, launch, own_end

LOST = FinalRecord("t-1", Outcome.FAILED, 9.0, False, error_code="S106", message="the controller of node 1 died")
SAVED = FinalRecord("t-1", Outcome.HALTED, 9.0, False, message="preempted", interruption="preemption")
GANG = replace(launch(2), pod=Pod("/ffdl-pod"))


def over(node: int) -> Event:
    return Event(99, 8.0, f"node-{node}", EventKind.ENDED)


PEER = own_end(0, 6.0, exit_code=143, ended_by="term")
EVENTS = [*at_work(0), *at_work(1), own_end(1, exit_code=4), PEER, over(0), over(1)]


@pytest.mark.parametrize("final", [LOST, SAVED])
def test_as_all_say_reports_failed_learner_that_head_controller_missed(final: FinalRecord) -> None:
    found = as_all_say(final, GANG, EVENTS)
    assert (found.outcome, found.error_code, found.exit_code) == (Outcome.FAILED, "C201", 4)
    assert found.interruption == "" and "learner 2" in found.message


@pytest.mark.parametrize(
    ("gang", "events"),
    [
        (replace(GANG, pod=Pod("/ffdl-pod", apart=False)), EVENTS),  # it saw all
        (replace(GANG, pod=None), EVENTS),
        (GANG, EVENTS[:-1]),  # nobody has heard of the other one's end
        (GANG, [*at_work(0), *at_work(1), PEER, over(0), over(1)]),  # no learner failed of itself
    ],
)
def test_as_all_say_keeps_head_controller_record_without_complete_contrary_evidence(
    gang: object, events: list[Event]
) -> None:
    assert as_all_say(LOST, gang, events) == LOST  # type: ignore[arg-type]

"""What follows from what is known; each rule of the module, and that unknown is never an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.continuation import Checkpoint, Interruption, Spent
from ffdl_batch.domain.events import Event, EventKind, FinalRecord, GoesOn, Outcome, Scalar
from ffdl_batch.domain.job_state import LIVE, Cause, JobState, Wish
from ffdl_batch.domain.known import WHOLE_SECOND_S, Evidence, Known, is_last_word
from ffdl_batch.domain.observation import EndCause, Observation, Phase
from ffdl_batch.domain.verdict import Move, judge

NOW = 1000.0


def event(seq: int, phase: str, at: float) -> Event:
    return Event(seq, at, "node-0", EventKind.PHASE, {"phase": phase, "status": "started"})


RUN = [event(1, "load-model", 10.0), event(2, "learner", 20.0), event(3, "store-results", 30.0)]
DONE = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=True, exit_code=0)
FAILED = FinalRecord("7", Outcome.FAILED, 40.0, True, 3, None, "C201", "the learner ended with 3", ("boom",))
OUTSIDE = FinalRecord("7", Outcome.CANCELLED, 40.0, True, message="ended from outside before the learners had finished")


def seen(phase: Phase, end: EndCause | None = None, reason: str = "", native: str = "X") -> Observation:
    return Observation(phase, native, end, reason=reason, submitted_at=5.0, ended_at=50.0 if end else None)


def known(
    state: JobState = JobState.QUEUED,
    observation: Observation | None = None,
    events: Sequence[Event] = (),
    final: FinalRecord | None = None,
    wish: Wish = Wish.NONE,
    forgotten: bool = False,
    settled: bool = True,
) -> Known:
    return Known(state, wish, observation, Evidence(events, final), NOW, forgotten, settled)


ENDED_WELL = seen(Phase.ENDED, EndCause.SUCCESS)


def test_verdict_lists_every_state_with_its_time_for_fast_job() -> None:
    verdict = judge(known(JobState.DEPLOYING, ENDED_WELL, RUN, DONE))
    assert verdict.steps == (
        (JobState.QUEUED, 5.0),
        (JobState.DOWNLOADING, 10.0),
        (JobState.PROCESSING, 20.0),
        (JobState.STORING, 30.0),
        (JobState.COMPLETED, 40.0),
    )
    assert verdict.exit_code == 0


def test_verdict_takes_phases_from_events_while_scheduler_reports_pending() -> None:
    verdict = judge(known(JobState.QUEUED, seen(Phase.PENDING), RUN[:2]))
    assert [s for s, _ in verdict.steps] == [JobState.DOWNLOADING, JobState.PROCESSING]


@pytest.mark.parametrize("state", sorted(LIVE))
@pytest.mark.parametrize("observation", [None, seen(Phase.UNKNOWN), seen(Phase.RUNNING), seen(Phase.COMPLETING)])
@pytest.mark.parametrize("final", [None, DONE, FAILED])
def test_verdict_keeps_job_live_without_end_from_scheduler(
    state: JobState, observation: Observation | None, final: FinalRecord | None
) -> None:
    assert all(s in LIVE for s, _ in judge(known(state, observation, RUN, final)).steps)


def test_verdict_fails_job_if_scheduler_reports_success_without_final_record() -> None:
    verdict = judge(known(JobState.PROCESSING, ENDED_WELL, RUN))
    assert verdict.steps[-1][0] is JobState.FAILED
    assert verdict.error_code == "S106"


def test_verdict_completes_forgotten_job_only_with_final_record() -> None:
    assert judge(known(JobState.PROCESSING, None, RUN, DONE)).steps == ((JobState.STORING, 30.0),)
    assert judge(known(JobState.PROCESSING, None, RUN, DONE, forgotten=True)).steps[-1][0] is JobState.COMPLETED
    lost = judge(known(JobState.PROCESSING, None, RUN, forgotten=True))
    assert (lost.steps[-1][0], lost.error_code) == (JobState.FAILED, "S106")


def test_verdict_continues_lost_job_but_not_forgotten_job_before_start() -> None:
    forgotten = known(JobState.QUEUED, None, forgotten=True)
    assert judge(forgotten).interruption is None
    lost = judge(replace(forgotten, lost=True))
    assert (lost.interruption, lost.error_code) == (Interruption.NODE_FAILURE, "S112")
    assert not lost.lost_node


@pytest.mark.parametrize("code", ["S107", "S108"])
def test_verdict_reports_node_failure_and_lost_node_for_unfit_node(code: str) -> None:
    final = replace(DONE, outcome=Outcome.FAILED, stored=False, exit_code=None, error_code=code, message="node n1 ...")
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, EndCause.FAILURE, native="FAILED"), RUN, final))
    assert (verdict.interruption, verdict.error_code, verdict.lost_node) == (Interruption.NODE_FAILURE, code, True)


def test_verdict_completes_with_warning_if_node_fails_after_results_were_stored() -> None:
    verdict = judge(known(JobState.STORING, seen(Phase.ENDED, EndCause.NODE_FAIL, native="NODE_FAIL"), RUN, DONE))
    assert verdict.steps[-1][0] is JobState.COMPLETED
    assert "NODE_FAIL" in verdict.warning


def test_verdict_completes_at_upload_time_with_warning_after_late_upload() -> None:
    end = seen(Phase.ENDED, EndCause.NODE_FAIL, native="NODE_FAIL")
    before = known(JobState.STORING, end, RUN[:2])
    verdict = judge(replace(before, evidence=Evidence(RUN[:2], replace(DONE, at=90.0), paid=90.0)))
    assert verdict.steps == ((JobState.COMPLETED, 90.0),)
    assert verdict.warning == "the scheduler reports NODE_FAIL; what was still to be stored was stored after that"


def test_verdict_fails_with_s303_if_results_of_success_were_not_stored() -> None:
    final = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=False, message="no space left")
    verdict = judge(known(JobState.STORING, seen(Phase.ENDED, EndCause.FAILURE), RUN, final))
    assert (verdict.steps[-1][0], verdict.error_code, verdict.message) == (JobState.FAILED, "S303", "no space left")


def test_verdict_keeps_error_code_exit_code_and_log_tail_of_failed_learner() -> None:
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, EndCause.FAILURE), RUN, FAILED))
    assert verdict.steps[-1][0] is JobState.FAILED
    assert (verdict.error_code, verdict.exit_code, verdict.log_tail) == ("C201", 3, ("boom",))


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (EndCause.TIMEOUT, "C203"),
        (EndCause.OUT_OF_MEMORY, "C202"),
        (EndCause.NODE_FAIL, "S110"),
        (EndCause.PREEMPTED, "S111"),
        (EndCause.LAUNCH_FAILED, "S101"),
        (EndCause.REVOKED, "S112"),
        (EndCause.FAILURE, "S106"),
    ],
)
def test_verdict_uses_scheduler_end_cause_without_final_record(end: EndCause, code: str) -> None:
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN))
    assert (verdict.steps[-1][0], verdict.error_code) == (JobState.FAILED, code)


def test_verdict_fails_with_s105_without_retry_if_image_cannot_be_pulled() -> None:
    observed = seen(Phase.ENDED, EndCause.NO_IMAGE, reason="the image x cannot be had (ErrImagePull)")
    verdict = judge(known(JobState.QUEUED, observed))
    assert (verdict.steps[-1][0], verdict.error_code) == (JobState.FAILED, "S105")
    assert "the image x cannot be had (ErrImagePull)" in verdict.message
    assert verdict.interruption is None


@pytest.mark.parametrize("end", [EndCause.TIMEOUT, EndCause.OUT_OF_MEMORY])
def test_verdict_prefers_time_or_memory_limit_over_learner_error_code(end: EndCause) -> None:
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN, FAILED))
    assert verdict.error_code in ("C202", "C203")
    assert verdict.exit_code == 3


def test_verdict_has_a_message_for_every_end_cause() -> None:
    for end in EndCause:
        verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end, reason="SomeReason"), RUN))
        assert verdict.steps[-1][0] in (JobState.FAILED, JobState.CANCELLED)
        assert verdict.message


@pytest.mark.parametrize("end", [EndCause.CANCELLED, EndCause.FAILURE, EndCause.TIMEOUT, EndCause.SUCCESS])
def test_verdict_reports_cancelled_if_cancel_precedes_upload(end: EndCause) -> None:
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN[:2], wish=Wish.CANCEL))
    assert verdict.steps[-1][0] is JobState.CANCELLED


def test_verdict_ignores_cancel_after_results_were_stored() -> None:
    verdict = judge(known(JobState.STORING, ENDED_WELL, RUN, DONE, wish=Wish.CANCEL))
    assert verdict.steps[-1][0] is JobState.COMPLETED


@pytest.mark.parametrize("state", [JobState.PROCESSING, JobState.STORING])
def test_verdict_dates_cancel_now_while_storing_and_at_attempt_end_otherwise(state: JobState) -> None:
    """Its attempt has ended long before; a daemon that missed that takes the attempt's end for the job's."""
    owing = replace(DONE, stored=False, stores_later=True)
    verdict = judge(known(state, ENDED_WELL, RUN, owing, wish=Wish.CANCEL))
    assert verdict.steps[-1] == (JobState.CANCELLED, NOW if state is JobState.STORING else 50.0)


def test_verdict_reports_cancelled_after_external_cancel() -> None:
    verdict = judge(known(JobState.QUEUED, seen(Phase.ENDED, EndCause.CANCELLED)))
    assert verdict.steps[-1][0] is JobState.CANCELLED


def test_verdict_waits_for_final_record_until_files_are_settled() -> None:
    assert judge(known(JobState.STORING, ENDED_WELL, RUN, None, settled=False)).steps == ()
    assert judge(known(JobState.STORING, ENDED_WELL, RUN, DONE, settled=False)).steps[-1][0] is JobState.COMPLETED


def test_verdict_returns_to_queued_once_per_requeue_and_ignores_old_phases() -> None:
    back = judge(known(JobState.PROCESSING, seen(Phase.PENDING), RUN[:2]))
    assert (back.steps, back.cause) == (((JobState.QUEUED, NOW),), Cause.REQUEUED)
    claims = [Event(1, 1.0, "head", EventKind.CLAIMED), *RUN[:2], Event(2, 500.0, "head", EventKind.CLAIMED)]
    again = [*claims, event(4, "learner", 520.0)]
    assert judge(known(JobState.QUEUED, seen(Phase.PENDING), claims)).steps == ()
    assert judge(known(JobState.QUEUED, seen(Phase.RUNNING), again)).steps == ((JobState.PROCESSING, 520.0),)


def test_verdict_step_times_never_decrease_despite_clock_skew() -> None:
    skewed = [event(1, "load-model", 30.0), event(2, "learner", 20.0)]
    assert judge(known(JobState.QUEUED, seen(Phase.RUNNING), skewed)).steps == (
        (JobState.DOWNLOADING, 30.0),
        (JobState.PROCESSING, 30.0),
    )


def test_verdict_caps_event_times_at_now_when_node_clock_is_ahead() -> None:
    ahead = [event(1, "load-model", NOW + 500), event(2, "learner", NOW + 501)]
    assert {at for _, at in judge(known(JobState.QUEUED, seen(Phase.RUNNING), ahead)).steps} == {NOW}


def test_verdict_caps_event_times_at_scheduler_end_when_node_clock_is_ahead() -> None:
    """A minute ahead, and read an hour later: the controllers were through before the scheduler was."""
    ahead = [replace(each, at=each.at + 60.0) for each in RUN]
    final = replace(DONE, at=DONE.at + 60.0)
    verdict = judge(known(JobState.QUEUED, ENDED_WELL, ahead, final))
    assert ENDED_WELL.ended_at is not None
    latest = ENDED_WELL.ended_at + WHOLE_SECOND_S
    assert [at for _, at in verdict.steps] == [latest, latest, latest, latest]


@pytest.mark.parametrize("final", [None, OUTSIDE])
@pytest.mark.parametrize("wish", list(Wish))
def test_verdict_dates_end_by_scheduler_end_time(final: FinalRecord | None, wish: Wish) -> None:
    ended = seen(Phase.ENDED, EndCause.PREEMPTED)
    assert judge(known(JobState.PROCESSING, ended, RUN[:2], final, wish)).steps[-1][1] == ended.ended_at


@pytest.mark.parametrize(
    ("events", "final", "heard", "at"),
    [
        (RUN[:2], OUTSIDE, 39.0, OUTSIDE.at),
        (RUN[:2], None, 35.0, 35.0),
        (RUN[:2], None, None, RUN[1].at),
        (RUN, None, 25.0, RUN[2].at),
        (RUN, None, NOW + 500.0, NOW),
        ([], None, None, NOW),
    ],
)
def test_verdict_dates_forgotten_end_by_final_record_or_last_sign_of_life(
    events: Sequence[Event], final: FinalRecord | None, heard: float | None, at: float
) -> None:
    forgotten = replace(
        known(JobState.PROCESSING, None, forgotten=True, wish=Wish.CANCEL), evidence=Evidence(events, final, "", heard)
    )
    assert judge(forgotten).steps[-1] == (JobState.CANCELLED, at)


def test_verdict_has_no_steps_for_ended_job() -> None:
    assert judge(known(JobState.COMPLETED, seen(Phase.RUNNING), RUN)).steps == ()


@pytest.mark.parametrize(
    ("end", "code"),
    [(EndCause.TIMEOUT, "C203"), (EndCause.OUT_OF_MEMORY, "C202"), (EndCause.PREEMPTED, "S111"),
     (EndCause.NODE_FAIL, "S110"), (EndCause.REVOKED, "S112")],
)  # fmt: skip
def test_verdict_takes_cause_from_scheduler_when_controllers_were_terminated(end: EndCause, code: str) -> None:
    """Slurm sends TERM at the time limit as it does for scancel."""
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN, OUTSIDE))
    assert (verdict.steps[-1][0], verdict.error_code) == (JobState.FAILED, code)
    wished = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN, OUTSIDE, wish=Wish.CANCEL))
    assert (wished.steps[-1][0], wished.message) == (JobState.CANCELLED, "cancelled by its owner")


@pytest.mark.parametrize("end", [EndCause.CANCELLED, EndCause.FAILURE])
def test_verdict_does_not_attribute_external_end_to_owner_without_request(end: EndCause) -> None:
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN, OUTSIDE))
    assert verdict.steps[-1][0] is JobState.CANCELLED
    assert "owner" not in verdict.message and verdict.message


def claim(seq: int, at: float, restart: int) -> Event:
    return Event(seq, at, "head", EventKind.CLAIMED, {"restart": restart})


AGAIN = Observation(Phase.RUNNING, "RUNNING", restarts=1)


@pytest.mark.parametrize("final", [OUTSIDE, FinalRecord("7", Outcome.FAILED, 40.0, False, error_code="S106")])
def test_verdict_ignores_final_record_from_before_restart(final: FinalRecord) -> None:
    events = [claim(1, 1.0, 0), *RUN[:2], claim(2, 500.0, 1), event(4, "learner", 520.0)]
    ended = Observation(Phase.ENDED, "COMPLETED", EndCause.SUCCESS, restarts=1, ended_at=600.0)
    verdict = judge(replace(known(JobState.PROCESSING, ended, events, final), requeues=1))
    assert (verdict.error_code, verdict.interruption) == ("S106", Interruption.NODE_FAILURE)
    unsettled = replace(known(JobState.PROCESSING, ended, events, final, settled=False), requeues=1)
    assert judge(unsettled).steps == ()


def test_verdict_keeps_final_outcome_when_scheduler_restarts_job() -> None:
    ended = Observation(Phase.ENDED, "COMPLETED", EndCause.SUCCESS, restarts=1, ended_at=600.0)
    assert judge(known(JobState.STORING, ended, RUN, DONE)).steps[-1][0] is JobState.COMPLETED
    assert is_last_word(DONE) and is_last_word(FAILED)
    assert not is_last_word(OUTSIDE)
    assert not is_last_word(FinalRecord("7", Outcome.HALTED, 40.0, True, goes_on=GoesOn.REQUEUE))


@pytest.mark.parametrize(
    ("final", "why"),
    [
        (None, Interruption.NODE_FAILURE),
        (OUTSIDE, Interruption.PREEMPTION),
        (FinalRecord("7", Outcome.FAILED, 40.0, False, error_code="S106"), Interruption.NODE_FAILURE),
        (
            FinalRecord("7", Outcome.HALTED, 40.0, True, goes_on=GoesOn.REQUEUE, interruption="timeout", message="m"),
            Interruption.TIMEOUT,
        ),
    ],
)
def test_verdict_adopts_requeue_with_interruption_from_final_record(
    final: FinalRecord | None, why: Interruption
) -> None:
    waits = Observation(Phase.PENDING, "PENDING", restarts=1)
    verdict = judge(known(JobState.PROCESSING, waits, RUN[:2], final))
    at = NOW if final is None else final.at
    assert (verdict.steps, verdict.move, verdict.interruption) == (((JobState.QUEUED, at),), Move.REQUEUED, why)
    told = replace(known(JobState.QUEUED, waits, RUN[:2], final), requeues=1)
    assert judge(told).steps == (), "phases of the run before must not come back"


def test_verdict_adopts_requeue_after_final_record_silence_or_next_claim() -> None:
    waits, early = Observation(Phase.PENDING, "PENDING", restarts=1), OUTSIDE
    loud = replace(known(JobState.PROCESSING, waits, RUN[:2]), quiet=False)
    assert judge(loud).move is Move.NONE
    assert judge(replace(loud, quiet=True)).interruption is Interruption.NODE_FAILURE
    assert judge(replace(loud, evidence=Evidence(RUN[:2], early))).interruption is Interruption.PREEMPTION
    assert judge(replace(loud, evidence=Evidence(SECOND))).move is Move.REQUEUED, "the next run began"


def test_verdict_adopts_unseen_restart_before_its_phases() -> None:
    events = [claim(1, 1.0, 0), *RUN[:2], claim(2, 500.0, 1), event(4, "learner", 520.0)]
    assert judge(known(JobState.PROCESSING, AGAIN, events)).move is Move.REQUEUED
    later = judge(replace(known(JobState.QUEUED, AGAIN, events), requeues=1))
    assert later.steps == ((JobState.PROCESSING, 520.0),)


SAVED = FinalRecord("7", Outcome.HALTED, 45.0, True, goes_on=GoesOn.REQUEUE, interruption="timeout")
SECOND = [claim(1, 1.0, 0), *RUN[:2], claim(2, 500.0, 1), event(4, "learner", 520.0)]


@pytest.mark.parametrize(
    ("observation", "events", "final", "at"),
    [
        (Observation(Phase.PENDING, "PENDING", restarts=1, submitted_at=50.0), RUN[:2], SAVED, 50.0),
        (Observation(Phase.RUNNING, "RUNNING", restarts=1, submitted_at=50.0), SECOND, None, 50.0),
        (Observation(Phase.PENDING, "PENDING", restarts=1, submitted_at=5.0), RUN[:2], SAVED, 45.0),
        (Observation(Phase.RUNNING, "RUNNING", restarts=2, submitted_at=600.0), SECOND, SAVED, 45.0),
        (Observation(Phase.RUNNING, "RUNNING", restarts=2, submitted_at=600.0), SECOND, None, 500.0),
        (None, SECOND, replace(OUTSIDE, at=700.0, restart=1), 500.0),
        (Observation(Phase.PENDING, "PENDING", restarts=1, submitted_at=NOW + 9.0), RUN[:2], SAVED, NOW),
        (Observation(Phase.PENDING, "PENDING", restarts=1), RUN[:2], None, NOW),
    ],
    ids=["waits", "runs", "first-submission", "second-requeue", "only-the-claim", "later-record", "ahead", "nothing"],
)
def test_verdict_dates_requeue_by_submission_record_or_claim(
    observation: Observation | None, events: Sequence[Event], final: FinalRecord | None, at: float
) -> None:
    verdict = judge(known(JobState.PROCESSING, observation, events, final))
    assert (verdict.move, verdict.steps) == (Move.REQUEUED, ((JobState.QUEUED, at),))


def test_verdict_dates_end_of_held_job_by_final_record() -> None:
    held = Observation(Phase.PENDING, "PENDING", reason="JobHoldMaxRequeue", restarts=5, held_for_good=True)
    verdict = judge(known(JobState.PROCESSING, held, RUN[:2], replace(OUTSIDE, restart=4)))
    assert (verdict.held, verdict.steps[-1]) == (True, (JobState.FAILED, OUTSIDE.at))


def test_verdict_follows_continuation_before_scheduler_reports_end() -> None:
    final = FinalRecord(
        "7", Outcome.HALTED, 40.0, True, goes_on=GoesOn.SUCCESSOR, interruption="preemption", spent=Spent(preemptions=1)
    )
    verdict = judge(known(JobState.QUEUED, seen(Phase.RUNNING), RUN, final))
    assert (verdict.move, verdict.interruption) == (Move.SUCCEEDED, Interruption.PREEMPTION)
    assert [state for state, _ in verdict.steps] == [JobState.DOWNLOADING, JobState.PROCESSING, JobState.STORING]


@pytest.mark.parametrize(("asked", "why"), [(False, Interruption.NODE_FAILURE), (True, Interruption.PREEMPTION)])
def test_verdict_adopts_unseen_requeue_before_continuation(asked: bool, why: Interruption) -> None:
    request = [Event(3, 30.0, "node-0", EventKind.ASKED, {"reason": "term"})] if asked else []
    events = [claim(1, 1.0, 0), *RUN[:2], *request, claim(2, 500.0, 1), event(4, "learner", 520.0)]
    final = FinalRecord(
        "7", Outcome.HALTED, 600.0, True, restart=1, goes_on=GoesOn.SUCCESSOR, interruption="timeout", spent=Spent()
    )
    first = judge(known(JobState.PROCESSING, None, events, final))
    assert (first.move, first.interruption) == (Move.REQUEUED, why)
    then = judge(replace(known(JobState.QUEUED, None, events, final), requeues=1))
    assert (then.move, then.interruption) == (Move.SUCCEEDED, Interruption.TIMEOUT)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (EndCause.TIMEOUT, Interruption.TIMEOUT),
        (EndCause.PREEMPTED, Interruption.PREEMPTION),
        (EndCause.NODE_FAIL, Interruption.NODE_FAILURE),
        (EndCause.LAUNCH_FAILED, Interruption.NODE_FAILURE),
        (EndCause.FAILURE, Interruption.NODE_FAILURE),
        (EndCause.OUT_OF_MEMORY, Interruption.FAILURE),
        (EndCause.REVOKED, None),
        (EndCause.CANCELLED, None),
    ],
)
def test_verdict_maps_end_cause_to_interruption(end: EndCause, why: Interruption | None) -> None:
    assert judge(known(JobState.PROCESSING, seen(Phase.ENDED, end), RUN)).interruption is why


@pytest.mark.parametrize("end", [EndCause.FAILURE, EndCause.SUCCESS, EndCause.LAUNCH_FAILED])
def test_verdict_does_not_continue_job_that_never_started(end: EndCause) -> None:
    verdict = judge(known(JobState.QUEUED, seen(Phase.ENDED, end)))
    assert (verdict.steps[-1][0], verdict.interruption) == (JobState.FAILED, None)


def test_verdict_ends_held_job_as_node_failure_without_halt_request() -> None:
    held = Observation(Phase.PENDING, "PENDING", reason="JobHoldMaxRequeue", restarts=5, held_for_good=True)
    verdict = judge(known(JobState.PROCESSING, held, RUN[:2]))
    assert (verdict.held, verdict.interruption) == (True, Interruption.NODE_FAILURE)
    assert "JobHoldMaxRequeue" in verdict.message
    assert not judge(known(JobState.QUEUED, held, RUN[:2], wish=Wish.HALT)).held


def test_verdict_accepts_timeout_decision_of_head_controller() -> None:
    final = FinalRecord(
        "7", Outcome.TIMED_OUT, 40.0, True, interruption="timeout", spent=Spent(timeouts=51), error_code="C203"
    )
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, EndCause.TIMEOUT), RUN, final))
    assert (verdict.decided, verdict.steps[-1][0]) == (True, JobState.FAILED)


def test_verdict_reports_halt_without_confirmed_checkpoint() -> None:
    asked = FinalRecord("7", Outcome.CANCELLED, 40.0, True, checkpoint=Checkpoint(asked=True))
    started = [*RUN[:2], Event(9, 21.0, "node-0", EventKind.LEARNER_STARTED, {"learner_id": 1})]
    verdict = judge(known(JobState.PROCESSING, seen(Phase.ENDED, EndCause.FAILURE), started, asked, wish=Wish.HALT))
    assert (verdict.steps[-1][0], verdict.interruption) == (JobState.HALTED, Interruption.HALT)
    assert verdict.message == "halted on request; no checkpoint was confirmed"


def test_verdict_reports_halt_before_start_for_unstarted_attempt() -> None:
    verdict = judge(known(JobState.QUEUED, seen(Phase.ENDED, EndCause.CANCELLED), wish=Wish.HALT))
    assert (verdict.steps[-1][0], verdict.message) == (JobState.HALTED, "halted before it started")
    later = replace(known(JobState.QUEUED, seen(Phase.ENDED, EndCause.CANCELLED), wish=Wish.HALT), attempt=2)
    assert judge(later).message == "halted before attempt 2 started"


# ------------------------------------------------------------------------------------- what is left to be stored


def learner(seq: int, kind: EventKind, at: float, number: int = 1, **fields: Scalar) -> Event:
    return Event(seq, at, f"node-{number - 1}", kind, {"learner_id": number, **fields})


def at_work(*ends: Event) -> list[Event]:
    """Two learners that were started, and how they ended."""
    return [*RUN[:2], *(learner(8, EventKind.LEARNER_STARTED, 21.0, n) for n in (1, 2)), *ends]


ONE, TWO = (learner(9, EventKind.LEARNER_ENDED, 28.0, n, exit_code=0, ended_by="", asked="") for n in (1, 2))
STORES = event(10, "store-logs", 30.0)
FAILED_ONCE = replace(TWO, fields={**TWO.fields, "exit_code": 3, "restarted": True})


def with_service(*ends: Event) -> list[Event]:
    """The first of the two is a service."""
    started = learner(8, EventKind.LEARNER_STARTED, 21.0, 1, service=True)
    return [*RUN[:2], started, learner(8, EventKind.LEARNER_STARTED, 21.0, 2), *ends]


def service_ended(exit_code: int, ended_by: str = "") -> Event:
    return learner(9, EventKind.LEARNER_ENDED, 29.0, 1, exit_code=exit_code, ended_by=ended_by, asked="", service=True)


def left_with(events: Sequence[Event], **evidence: Any) -> Known:
    ended = seen(Phase.ENDED, EndCause.FAILURE)
    return replace(known(JobState.PROCESSING, ended), evidence=Evidence(events, **evidence), learners=2)


@pytest.mark.parametrize(
    ("events", "found", "is_over"),
    [
        (at_work(ONE, TWO), {}, True),
        (at_work(ONE), {2: 0}, True),
        (at_work(ONE), {}, False),
        (at_work(ONE), {2: 3}, False),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "asked": "warned"})), {}, False),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": 3})), {}, False),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": 3}), STORES), {}, True),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": 139}), STORES), {}, True),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": 143}), STORES), {}, False),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": None, "signal": 9}), STORES), {}, False),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": 137, "out_of_memory": True}), STORES), {}, True),
        (at_work(ONE, TWO, learner(20, EventKind.LEARNER_STARTED, 40.0)), {}, False),
        (with_service(TWO), {}, True),
        (with_service(), {2: 0}, True),
        (with_service(TWO, service_ended(143, "service")), {}, True),
        (with_service(TWO, service_ended(1)), {}, True),
        (with_service(service_ended(0)), {}, False),
        (with_service(service_ended(1)), {}, False),
        (with_service(), {1: 0}, False),
        (at_work(ONE, FAILED_ONCE, STORES), {}, False),
        (at_work(replace(TWO, fields={**TWO.fields, "exit_code": 3}), STORES), {}, False),
        (at_work(replace(TWO, fields={**TWO.fields, "exit_code": 3}), STORES), {1: 3}, True),
        (at_work(ONE, replace(TWO, fields={**TWO.fields, "exit_code": 255, "code": "S107"}), STORES), {}, False),
    ],
)  # fmt: skip
def test_verdict_sets_pending_upload_only_if_all_learners_are_finished(
    events: Sequence[Event], found: dict[int, int], is_over: bool
) -> None:
    verdict = judge(left_with(events, found=found))
    assert (verdict.move, verdict.steps[-1][0]) == (
        (Move.OWED, JobState.STORING) if is_over else (Move.ENDED, JobState.FAILED)
    )
    assert judge(replace(left_with(events, found=found), settled=False)).move is Move.NONE


@pytest.mark.parametrize(
    ("events", "state"),
    [
        (with_service(TWO, service_ended(143, "service")), JobState.COMPLETED),
        (with_service(TWO, service_ended(1)), JobState.COMPLETED),
        (with_service(service_ended(0)), JobState.FAILED),
        (at_work(ONE, TWO), JobState.COMPLETED),
        (at_work(ONE, FAILED_ONCE), JobState.FAILED),
    ],
)
def test_verdict_completes_without_final_record_only_if_learners_ended_and_stored(
    events: list[Event], state: JobState
) -> None:
    stored = [learner(11, EventKind.STORED, 31.0, number) for number in (1, 2)]
    assert judge(left_with([*events, *stored])).steps[-1][0] is state
    if state is JobState.COMPLETED:
        assert judge(left_with([*events, *stored[1:]])).move is Move.OWED


def test_verdict_dates_completion_by_late_upload() -> None:
    late = replace(DONE, at=90.0)
    assert judge(left_with(at_work(ONE, TWO), final=late, paid=90.0)).steps[-1] == (JobState.COMPLETED, 90.0)


def test_known_takes_head_controller_wait_from_latest_claim() -> None:
    def head(seq: int, at: float, kind: EventKind, **fields: Scalar) -> Event:
        return Event(seq, at, "head", kind, fields)

    first = [head(1, 1.0, EventKind.CLAIMED, restart=0), head(2, 2.0, EventKind.WAITING, message="the run before")]
    assert known(events=first).waits_for == "the run before"
    assert known(events=[*first, head(3, 3.0, EventKind.WAITING, message="")]).waits_for == ""
    assert known(events=first, final=OUTSIDE).waits_for == ""
    again = [*first, head(3, 50.0, EventKind.CLAIMED, restart=1)]
    assert known(events=again, final=OUTSIDE).waits_for == ""
    again.append(head(4, 51.0, EventKind.WAITING, message="the first run"))
    assert known(events=again, final=OUTSIDE).waits_for == "the first run"

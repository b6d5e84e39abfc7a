"""The verdict on an attempt: each rule of the module, and that `unknown` is never an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.job_state import LIVE, JobState, RequestedAction
from ffdl_batch.domain.outcome.attempt_reports import latest_run
from ffdl_batch.domain.outcome.continuation import Checkpoint, Interruption, Spent
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, Outcome, Scalar
from ffdl_batch.domain.outcome.error_codes import FAULTS
from ffdl_batch.domain.outcome.facts import WHOLE_SECOND_S, AttemptFacts
from ffdl_batch.domain.outcome.observation import EndCause, Observation, Phase
from ffdl_batch.domain.outcome.verdict import VerdictKind, judge

NOW = 1000.0


def event(seq: int, phase: str, at: float) -> Event:
    return Event(seq, at, "node-0", EventKind.PHASE, {"phase": phase, "status": "started"})


RUN = [event(1, "load-model", 10.0), event(2, "learner", 20.0), event(3, "store-results", 30.0)]
DONE = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=True, exit_code=0)
FAILED = FinalRecord("7", Outcome.FAILED, 40.0, True, 3, None, "C201", "the learner ended with 3", ("boom",))
OUTSIDE = FinalRecord("7", Outcome.CANCELLED, 40.0, True, message="ended from outside before the learners had finished")


def claim(seq: int, at: float, restart: int) -> Event:
    return Event(seq, at, "head", EventKind.CLAIMED, {"restart": restart})


def halted(at: float = 40.0, **fields: Any) -> FinalRecord:
    return FinalRecord("7", Outcome.HALTED, at, True, **fields)


WAITS = Observation(Phase.PENDING, "PENDING", restarts=1)


def seen(phase: Phase, end: EndCause | None = None, reason: str = "", native: str = "X") -> Observation:
    return Observation(phase, native, end, reason=reason, submitted_at=5.0, ended_at=50.0 if end else None)


def facts(
    state: JobState = JobState.QUEUED, observation: Observation | None = None, events: Sequence[Event] = (),
    final: FinalRecord | None = None, requested_action: RequestedAction = RequestedAction.NONE, **more: Any,
) -> AttemptFacts:  # fmt: skip
    return AttemptFacts(
        state, requested_action, NOW, observation=observation, events=events, final_record=final, **more
    )


ENDED_WELL = seen(Phase.ENDED, EndCause.SUCCESS)


def test_verdict_lists_every_state_with_its_time_for_fast_job() -> None:
    verdict = judge(facts(JobState.DEPLOYING, ENDED_WELL, RUN, DONE))
    assert verdict.steps == (
        (JobState.QUEUED, 5.0),
        (JobState.DOWNLOADING, 10.0),
        (JobState.PROCESSING, 20.0),
        (JobState.STORING, 30.0),
        (JobState.COMPLETED, 40.0),
    )
    assert verdict.exit_code == 0


def test_verdict_takes_phases_from_events_while_scheduler_reports_pending_and_none_for_ended_job() -> None:
    verdict = judge(facts(JobState.QUEUED, seen(Phase.PENDING), RUN[:2]))
    assert [s for s, _ in verdict.steps] == [JobState.DOWNLOADING, JobState.PROCESSING]
    assert judge(facts(JobState.COMPLETED, seen(Phase.RUNNING), RUN)).steps == ()


@pytest.mark.parametrize("state", sorted(LIVE))
@pytest.mark.parametrize("observation", [None, seen(Phase.UNKNOWN), seen(Phase.RUNNING), seen(Phase.COMPLETING)])
@pytest.mark.parametrize("final", [None, DONE, FAILED])
def test_verdict_keeps_job_live_without_end_from_scheduler(
    state: JobState, observation: Observation | None, final: FinalRecord | None
) -> None:
    assert all(s in LIVE for s, _ in judge(facts(state, observation, RUN, final)).steps)


ENDS = {
    EndCause.SUCCESS: ("S106", Interruption.NODE_FAILURE),
    EndCause.FAILURE: ("S106", Interruption.NODE_FAILURE),
    EndCause.CANCELLED: ("000", None),
    EndCause.TIMEOUT: ("C203", Interruption.TIMEOUT),
    EndCause.OUT_OF_MEMORY: ("C202", Interruption.FAILURE),
    EndCause.OUT_OF_STORAGE: ("C204", Interruption.FAILURE),
    EndCause.KILLED_ITSELF: ("C201", Interruption.FAILURE),
    EndCause.NODE_FAIL: ("S110", Interruption.NODE_FAILURE),
    EndCause.PREEMPTED: ("S111", Interruption.PREEMPTION),
    EndCause.LAUNCH_FAILED: ("S101", Interruption.NODE_FAILURE),
    EndCause.REVOKED: ("S112", None),
    EndCause.NO_IMAGE: ("S105", None),
}


@pytest.mark.parametrize("end", list(EndCause))
def test_verdict_uses_scheduler_end_cause_without_final_record(end: EndCause) -> None:
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, end, reason="SomeReason"), RUN))
    assert verdict.steps[-1][0] is (JobState.CANCELLED if end is EndCause.CANCELLED else JobState.FAILED)
    assert (verdict.error_code, verdict.interruption) == ENDS[end]
    assert verdict.message


def test_verdict_completes_forgotten_job_only_with_final_record() -> None:
    assert judge(facts(JobState.PROCESSING, None, RUN, DONE)).steps == ((JobState.STORING, 30.0),)
    assert judge(facts(JobState.PROCESSING, None, RUN, DONE, is_forgotten=True)).steps[-1][0] is JobState.COMPLETED
    lost = judge(facts(JobState.PROCESSING, None, RUN, is_forgotten=True))
    assert (lost.steps[-1][0], lost.error_code) == (JobState.FAILED, "S106")


@pytest.mark.parametrize(
    "lost",
    [
        facts(JobState.PROCESSING, None, RUN, is_forgotten=True),
        facts(JobState.QUEUED, None, is_forgotten=True),
        facts(JobState.QUEUED, None, is_forgotten=True, is_lost=True),
        *(facts(JobState.PROCESSING, seen(Phase.ENDED, end), RUN) for end in ENDS if end is not EndCause.CANCELLED),
        *(facts(JobState.QUEUED, seen(Phase.ENDED, end)) for end in ENDS if end is not EndCause.CANCELLED),
    ],
)
def test_verdict_on_job_without_record_names_no_particular_scheduler(lost: AttemptFacts) -> None:
    """Jobs of every backend get the same words."""
    verdict = judge(lost)
    assert verdict.steps and verdict.message
    words = f"{verdict.message} {FAULTS[verdict.error_code].cure}".lower()
    assert not [word for word in ("slurm", "accounting", "sacct", "squeue", "kubernetes", "pod") if word in words]


def test_verdict_continues_lost_job_but_not_forgotten_job_before_start() -> None:
    forgotten = facts(JobState.QUEUED, None, is_forgotten=True)
    lost = judge(replace(forgotten, is_lost=True))
    assert judge(forgotten).interruption is None
    assert (lost.interruption, lost.error_code, lost.has_lost_node) == (Interruption.NODE_FAILURE, "S112", False)


@pytest.mark.parametrize("code", ["S107", "S108"])
def test_verdict_reports_node_failure_and_lost_node_for_unfit_node(code: str) -> None:
    final = replace(DONE, outcome=Outcome.FAILED, stored=False, exit_code=None, error_code=code, message="node n1 ...")
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.FAILURE, native="FAILED"), RUN, final))
    assert (verdict.interruption, verdict.error_code, verdict.has_lost_node) == (Interruption.NODE_FAILURE, code, True)


def test_verdict_completes_at_upload_time_with_warning_if_node_fails_but_results_are_stored() -> None:
    stored = facts(JobState.STORING, seen(Phase.ENDED, EndCause.NODE_FAIL, native="NODE_FAIL"), RUN, DONE)
    assert judge(stored).steps[-1][0] is JobState.COMPLETED
    assert "NODE_FAIL" in judge(stored).warning
    late = judge(replace(stored, events=RUN[:2], final_record=replace(DONE, at=90.0), uploaded_at=90.0))
    assert late.steps == ((JobState.COMPLETED, 90.0),)
    assert late.warning == "the scheduler reports NODE_FAIL; what was still to be stored was stored after that"


def test_verdict_fails_with_s303_if_results_of_success_were_not_stored() -> None:
    final = FinalRecord("7", Outcome.COMPLETED, 40.0, stored=False, message="no space left")
    verdict = judge(facts(JobState.STORING, seen(Phase.ENDED, EndCause.FAILURE), RUN, final))
    assert (verdict.steps[-1][0], verdict.error_code, verdict.message) == (JobState.FAILED, "S303", "no space left")


def test_verdict_keeps_error_code_exit_code_and_log_tail_of_failed_learner() -> None:
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.FAILURE), RUN, FAILED))
    assert verdict.steps[-1][0] is JobState.FAILED
    assert (verdict.error_code, verdict.exit_code, verdict.log_tail) == ("C201", 3, ("boom",))


def test_verdict_blames_learner_that_killed_controller_which_was_started_again() -> None:
    lost = replace(OUTSIDE, outcome=Outcome.FAILED, error_code="S106", message="its container has ended already")
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.KILLED_ITSELF), RUN, lost))
    assert (verdict.error_code, verdict.interruption) == ("C201", Interruption.FAILURE)
    own = replace(lost, error_code="C202")
    assert judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.KILLED_ITSELF), RUN, own)).error_code == "C202"


@pytest.mark.parametrize("end", [EndCause.TIMEOUT, EndCause.OUT_OF_MEMORY, EndCause.OUT_OF_STORAGE])
def test_verdict_prefers_time_memory_or_storage_limit_over_learner_error_code(end: EndCause) -> None:
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, end), RUN, FAILED))
    assert (verdict.error_code, verdict.exit_code) == (ENDS[end][0], 3)


def test_verdict_keeps_message_of_head_that_saw_memory_exceeded_itself() -> None:
    final = replace(FAILED, error_code="C202", message="learner 1 needed more than 128 MiB")
    assert (
        judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.OUT_OF_MEMORY), RUN, final)).message
        == final.message
    )


@pytest.mark.parametrize("end", [EndCause.CANCELLED, EndCause.FAILURE, EndCause.TIMEOUT, EndCause.SUCCESS])
def test_verdict_reports_cancelled_only_if_cancel_precedes_upload(end: EndCause) -> None:
    verdict = judge(
        facts(JobState.PROCESSING, seen(Phase.ENDED, end), RUN[:2], requested_action=RequestedAction.CANCEL)
    )
    assert verdict.steps[-1][0] is JobState.CANCELLED
    stored = judge(facts(JobState.STORING, ENDED_WELL, RUN, DONE, requested_action=RequestedAction.CANCEL))
    assert stored.steps[-1][0] is JobState.COMPLETED


@pytest.mark.parametrize("state", [JobState.PROCESSING, JobState.STORING])
def test_verdict_dates_cancel_now_while_storing_and_at_attempt_end_otherwise(state: JobState) -> None:
    """Its attempt has ended long before; a daemon that missed that takes the attempt's end for the job's."""
    pending = replace(DONE, stored=False, stores_later=True)
    verdict = judge(facts(state, ENDED_WELL, RUN, pending, requested_action=RequestedAction.CANCEL))
    assert verdict.steps[-1] == (JobState.CANCELLED, NOW if state is JobState.STORING else 50.0)


def test_verdict_waits_for_final_record_until_files_are_settled() -> None:
    assert judge(facts(JobState.STORING, ENDED_WELL, RUN, None, is_settled=False)).steps == ()
    assert judge(facts(JobState.STORING, ENDED_WELL, RUN, DONE, is_settled=False)).steps[-1][0] is JobState.COMPLETED


LATEST = 50.0 + WHOLE_SECOND_S


@pytest.mark.parametrize(
    ("observation", "events", "final", "times"),
    [
        pytest.param(seen(Phase.RUNNING), [event(1, "load-model", 30.0), event(2, "learner", 20.0)], None, [30.0, 30.0],
                     id="skew-never-decrease"),
        pytest.param(seen(Phase.RUNNING), [event(1, "load-model", NOW + 500), event(2, "learner", NOW + 501)], None,
                     [NOW, NOW], id="ahead-now"),
        # a minute ahead, and read an hour later: the controllers ended before the scheduler did
        pytest.param(ENDED_WELL, [replace(each, at=each.at + 60.0) for each in RUN], replace(DONE, at=100.0),
                     [LATEST] * 4, id="ahead-scheduler-end"),
    ],
)  # fmt: skip
def test_verdict_step_times_stay_in_order_and_within_limits_if_node_clock_is_wrong(
    observation: Observation, events: list[Event], final: FinalRecord | None, times: list[float]
) -> None:
    steps = judge(facts(JobState.QUEUED, observation, events, final)).steps
    assert [state for state, _ in steps][:2] == [JobState.DOWNLOADING, JobState.PROCESSING]
    assert [at for _, at in steps] == times


@pytest.mark.parametrize("final", [None, OUTSIDE])
@pytest.mark.parametrize("requested_action", list(RequestedAction))
def test_verdict_dates_end_by_scheduler_end_time(final: FinalRecord | None, requested_action: RequestedAction) -> None:
    ended = seen(Phase.ENDED, EndCause.PREEMPTED)
    assert judge(facts(JobState.PROCESSING, ended, RUN[:2], final, requested_action)).steps[-1][1] == ended.ended_at


@pytest.mark.parametrize(
    ("files", "at"),
    [
        ({"events": RUN[:2], "final_record": OUTSIDE, "last_heartbeat_at": 39.0}, OUTSIDE.at),
        ({"events": RUN[:2], "last_heartbeat_at": 35.0}, 35.0),
        ({"events": RUN[:2]}, RUN[1].at),
        ({"events": RUN, "last_heartbeat_at": 25.0}, RUN[2].at),
        ({"events": RUN, "last_heartbeat_at": NOW + 500.0}, NOW),
        ({"events": []}, NOW),
    ],
)
def test_verdict_dates_forgotten_end_by_final_record_or_last_sign_of_life(files: dict[str, Any], at: float) -> None:
    forgotten = facts(JobState.PROCESSING, None, is_forgotten=True, requested_action=RequestedAction.CANCEL)
    assert judge(replace(forgotten, **files)).steps[-1] == (JobState.CANCELLED, at)


@pytest.mark.parametrize(
    "end",
    [
        EndCause.TIMEOUT,
        EndCause.OUT_OF_MEMORY,
        EndCause.OUT_OF_STORAGE,
        EndCause.PREEMPTED,
        EndCause.NODE_FAIL,
        EndCause.REVOKED,
    ],
)
def test_verdict_takes_cause_from_scheduler_when_controllers_were_terminated(end: EndCause) -> None:
    """Slurm sends TERM at the time limit as it does for scancel."""
    found = facts(JobState.PROCESSING, seen(Phase.ENDED, end), RUN, OUTSIDE)
    verdict, requested = judge(found), judge(replace(found, requested_action=RequestedAction.CANCEL))
    assert (verdict.steps[-1][0], verdict.error_code) == (JobState.FAILED, ENDS[end][0])
    assert (requested.steps[-1][0], requested.message) == (JobState.CANCELLED, "cancelled by its owner")


def test_verdict_does_not_attribute_external_end_to_owner_without_request() -> None:
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.CANCELLED), RUN, OUTSIDE))
    assert verdict.steps[-1][0] is JobState.CANCELLED
    assert "owner" not in verdict.message and verdict.message


@pytest.mark.parametrize("end", [EndCause.FAILURE, EndCause.SUCCESS])
def test_verdict_continues_job_whose_terminated_controllers_scheduler_did_not_cancel(end: EndCause) -> None:
    found = facts(JobState.PROCESSING, seen(Phase.ENDED, end, native="FAILED"), RUN, OUTSIDE)
    verdict, halted = judge(found), judge(replace(found, requested_action=RequestedAction.HALT))
    assert (verdict.steps[-1][0], verdict.error_code) == (JobState.FAILED, "S106")
    assert verdict.interruption is Interruption.NODE_FAILURE
    assert verdict.message == f"{OUTSIDE.message}; the scheduler reports FAILED and no reason"
    assert halted.steps[-1][0] is JobState.HALTED


@pytest.mark.parametrize(
    "end", [EndCause.FAILURE, EndCause.SUCCESS, EndCause.LAUNCH_FAILED, EndCause.NO_IMAGE, EndCause.CANCELLED]
)
def test_verdict_does_not_continue_job_that_never_started(end: EndCause) -> None:
    reason = "the image x cannot be had (ErrImagePull)"
    verdict = judge(facts(JobState.QUEUED, seen(Phase.ENDED, end, reason=reason)))
    state = JobState.CANCELLED if end is EndCause.CANCELLED else JobState.FAILED
    assert (verdict.steps[-1][0], verdict.error_code, verdict.interruption) == (state, ENDS[end][0], None)
    assert reason in verdict.message or end is EndCause.CANCELLED


def test_verdict_accepts_timeout_decision_of_head_controller() -> None:
    final = FinalRecord(
        "7", Outcome.TIMED_OUT, 40.0, True, interruption="timeout", spent=Spent(timeouts=51), error_code="C203"
    )
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.TIMEOUT), RUN, final))
    assert (verdict.is_decided, verdict.steps[-1][0]) == (True, JobState.FAILED)


def test_verdict_reports_halt_without_confirmed_checkpoint() -> None:
    asked = FinalRecord("7", Outcome.CANCELLED, 40.0, True, checkpoint=Checkpoint(asked=True))
    started = [*RUN[:2], Event(9, 21.0, "node-0", EventKind.LEARNER_STARTED, {"learner_id": 1})]
    verdict = judge(
        facts(
            JobState.PROCESSING,
            seen(Phase.ENDED, EndCause.FAILURE),
            started,
            asked,
            requested_action=RequestedAction.HALT,
        )
    )
    assert (verdict.steps[-1][0], verdict.interruption) == (JobState.HALTED, Interruption.HALT)
    assert verdict.message == "halted on request; no checkpoint was confirmed"


def test_verdict_reports_halt_before_start_for_unstarted_attempt() -> None:
    first = facts(JobState.QUEUED, seen(Phase.ENDED, EndCause.CANCELLED), requested_action=RequestedAction.HALT)
    assert (judge(first).steps[-1][0], judge(first).message) == (JobState.HALTED, "halted before it started")
    assert judge(replace(first, attempt=2)).message == "halted before attempt 2 started"


def test_known_takes_head_controller_wait_from_latest_claim() -> None:
    def head(seq: int, at: float, kind: EventKind, **fields: Scalar) -> Event:
        return Event(seq, at, "head", kind, fields)

    first = [head(1, 1.0, EventKind.CLAIMED, restart=0), head(2, 2.0, EventKind.WAITING, message="the run before")]
    assert facts(events=first).head_waits_for == "the run before"
    assert facts(events=[*first, head(3, 3.0, EventKind.WAITING, message="")]).head_waits_for == ""
    assert facts(events=first, final=OUTSIDE).head_waits_for == ""
    again = [*first, head(3, 50.0, EventKind.CLAIMED, restart=1)]
    assert facts(events=again, final=OUTSIDE).head_waits_for == ""
    again.append(head(4, 51.0, EventKind.WAITING, message="the first run"))
    assert facts(events=again, final=OUTSIDE).head_waits_for == "the first run"


def test_latest_run_keeps_events_that_nodes_with_slow_clocks_date_before_the_only_claim() -> None:
    events = [event(1, "load-model", 0.5), claim(1, 1.0, 0), event(2, "learner", 2.0)]
    assert list(latest_run(events)) == events
    assert list(latest_run([*events, claim(2, 1.5, 1)])) == [events[2], claim(2, 1.5, 1)]


def left_alone(*more: Event) -> list[Event]:
    """The events of three learners, of which two have left, with their results stored."""
    left = []
    for number in (1, 2, 3):
        source, fields = f"node-{number - 1}", {"learner_id": number}
        left.append(Event(1, 20.0, source, EventKind.LEARNER_STARTED, fields))
        if number > 1:
            left.append(Event(2, 25.0, source, EventKind.LEARNER_ENDED, {**fields, "ended_by": "released"}))
            left.append(Event(3, 26.0, source, EventKind.PHASE, {"phase": "store-results", "status": "started"}))
            left.append(Event(4, 27.0, source, EventKind.STORED, fields))
    return [*left, *more]


DONE_ALONE = Event(2, 30.0, "node-0", EventKind.LEARNER_ENDED, {"learner_id": 1, "exit_code": 0})
STORED_ALONE = Event(3, 31.0, "node-0", EventKind.STORED, {"learner_id": 1})


def test_verdict_lets_job_train_after_all_but_one_learner_have_left() -> None:
    trains = facts(JobState.QUEUED, seen(Phase.RUNNING), left_alone(), learners=3)
    assert [state for state, _ in judge(trains).steps] == [JobState.PROCESSING]
    lost = replace(trains, observation=seen(Phase.ENDED, EndCause.NODE_FAIL))
    assert judge(lost).kind is VerdictKind.ENDED and judge(lost).error_code == "S110"


@pytest.mark.parametrize(("end", "kind"), [(STORED_ALONE, VerdictKind.ENDED), (None, VerdictKind.UPLOAD_PENDING)])
def test_verdict_counts_learners_that_left_as_done(end: Event | None, kind: VerdictKind) -> None:
    events = left_alone(DONE_ALONE, *([end] if end else []))
    verdict = judge(facts(JobState.PROCESSING, ENDED_WELL, events, learners=3))
    assert verdict.kind is kind
    assert verdict.steps[-1][0] is (JobState.COMPLETED if end else JobState.STORING)


@pytest.mark.parametrize("learners", [1, 3])
def test_verdict_fails_job_whose_first_learner_never_ended_although_others_are_done(learners: int) -> None:
    """They exited by themselves, so they have not left."""
    events = [
        Event(seq, 20.0 + seq, f"node-{number - 1}", kind, {"learner_id": number, "exit_code": 0})
        for number in (1, 2, 3)
        for seq, kind in enumerate((EventKind.LEARNER_STARTED, EventKind.LEARNER_ENDED, EventKind.STORED), start=1)
        if number > 1 or kind is EventKind.LEARNER_STARTED
    ]
    verdict = judge(facts(JobState.PROCESSING, seen(Phase.ENDED, EndCause.NODE_FAIL), events, learners=learners))
    assert (verdict.kind, verdict.error_code) == (VerdictKind.ENDED, "S110")

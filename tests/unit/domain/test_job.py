"""Ids and tokens of jobs, overrides, and which changes of state are legal."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from ffdl_batch.domain.findings import Finding, InputRefused, Severity
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.job import MAX_TOKEN, Job, Overrides, attempt_token, new_job_id, parse_job_id
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.job_state import (
    LIVE,
    TERMINAL,
    TRANSITIONS,
    Cause,
    IllegalTransition,
    JobState,
    RequestedAction,
    advance,
    is_legal,
)
from ffdl_batch.domain.outcome.observation import NativeId


def test_job_ids_are_unique_dns_labels() -> None:
    ids = {new_job_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{0,62}", i) and parse_job_id(i) == i for i in ids)


@pytest.mark.parametrize(
    "text",
    ["", "training-", "../etc", "training-ABCDEFGHI", "training-000000000/..", "training-0000000001",
     "training-００００００００0"],
)  # fmt: skip
def test_parse_job_id_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ValueError, match="training id"):
        parse_job_id(text)


def test_attempt_token_has_bounded_length_and_rejects_attempt_zero() -> None:
    job = new_job_id()
    assert attempt_token(job, 1) == f"{job}-1"
    assert len(attempt_token(job, 10**20)) <= MAX_TOKEN
    with pytest.raises(ValueError, match="no token"):
        attempt_token(job, 0)


@pytest.mark.parametrize("text", ["12", "12_3"])
def test_native_id_round_trips_through_text(text: str) -> None:
    assert str(NativeId.parse(text)) == text


def test_finding_prints_like_compiler_message() -> None:
    finding = Finding(Severity.ERROR, "is not a number", "write 2", "m.yml", 3, 7, "gpus")
    assert str(finding) == "m.yml:3:7: error: gpus: is not a number (write 2)"
    warning = Finding(Severity.WARNING, "odd")
    assert str(InputRefused([finding, warning])) == str(finding)


SPEC = JobSpec(
    "digits",
    Framework("custom", "image", "run"),
    resources=Resources(gpus=1.0, cpus=3.0),
    batch=BatchOptions(time_s=60, exclude="n1,n[2,4]"),
    sources={"gpus": "manifest:2", "cpus": "manifest:3"},
)


@pytest.mark.parametrize(
    ("overrides", "gpus", "time_s", "exclude"),
    [
        (Overrides(), 1.0, 60, "n1,n[2,4]"),
        (Overrides(gpus=0.0), 0.0, 60, "n1,n[2,4]"),
        (Overrides(time_s=7200), 1.0, 7200, "n1,n[2,4]"),
        (Overrides(2.5, 30, ("n7", "n8")), 2.5, 30, "n1,n[2,4],n7,n8"),
    ],
)
def test_overrides_change_only_named_fields_and_their_sources(
    overrides: Overrides, gpus: float, time_s: int, exclude: str
) -> None:
    after = overrides.apply(SPEC)
    assert (after.resources.gpus, after.batch.time_s, after.batch.exclude) == (gpus, time_s, exclude)
    assert (after.resources.cpus, after.framework, after.name) == (3.0, SPEC.framework, "digits")
    assert after.sources.get("gpus") == ("manifest:2" if overrides.gpus is None else "resume")
    assert after.sources.get("batch.time") == (None if overrides.time_s is None else "resume")
    assert after.sources["cpus"] == "manifest:3"
    assert Overrides(exclude=("n7",)).apply(JobSpec("x", SPEC.framework)).batch.exclude == "n7"


def test_overrides_change_size_of_elastic_job_and_keep_submitted_batch() -> None:
    elastic = Elastic(1, 8, 32, 512, 64, 32)
    spec = replace(SPEC, resources=Resources(learners=2, gpus=4.0), batch=BatchOptions(elasticity=elastic))
    job = Job(new_job_id(), 1, "ada", spec, JobState.PENDING, RequestedAction.NONE, "local", 0, "", 1, 1.0, 1.0)
    assert (job.global_batch, job.most_learners) == (32, 8)
    larger = replace(job, overrides=Overrides(learners=4, global_batch=200))
    after = larger.effective_spec
    assert (after.resources.learners, after.sources["learners"]) == (4, "resume")
    assert after.batch.elasticity == replace(elastic, global_batch=200)
    assert (larger.global_batch, larger.most_learners, larger.overrides.size) == (192, 8, (4, 200))
    assert replace(job, overrides=Overrides(gpus=1000.0)).global_batch is None
    fixed = replace(job, spec=SPEC)
    assert (fixed.global_batch, fixed.most_learners) == (None, 1)


def test_effective_spec_equals_submitted_spec_without_overrides() -> None:
    values = (new_job_id(), 1, "ada", SPEC, JobState.PENDING, RequestedAction.NONE, "local", 0, "", 1, 1.0, 1.0)
    assert Job(*values).effective_spec is SPEC
    assert Job(*values, overrides=Overrides(gpus=4.0)).effective_spec.resources.gpus == 4.0


ORDER = [s for s in JobState if s in LIVE]


def test_job_states_are_live_or_terminal_with_row_for_every_cause() -> None:
    assert set(JobState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    for cause in Cause:
        assert set(TRANSITIONS[cause]) == set(JobState)


@pytest.mark.parametrize(("earlier", "later"), list(itertools.combinations(ORDER, 2)))
def test_advance_allows_progress_forward_only(earlier: JobState, later: JobState) -> None:
    assert advance(earlier, later) is later
    with pytest.raises(IllegalTransition, match=f"from {later} to {earlier}"):
        advance(later, earlier)


@pytest.mark.parametrize("state", ORDER)
def test_live_state_may_end_in_every_terminal_state(state: JobState) -> None:
    assert all(is_legal(state, end) for end in TERMINAL)


def test_requeue_moves_only_backward() -> None:
    assert advance(JobState.PROCESSING, JobState.QUEUED, Cause.REQUEUED) is JobState.QUEUED
    assert not is_legal(JobState.QUEUED, JobState.PROCESSING, Cause.REQUEUED)


def test_terminal_state_is_left_only_on_user_request() -> None:
    """All pairs of all causes that begin at an end, or that an owner's word allows. Storing late leaves none."""
    ours = (Cause.RESUMED, Cause.CANCELLED)
    legal = {
        (current, target, cause)
        for current, target, cause in itertools.product(JobState, JobState, Cause)
        if (current in TERMINAL or cause in ours) and is_legal(current, target, cause)
    }
    assert legal == {
        (JobState.HALTED, JobState.PENDING, Cause.RESUMED),
        (JobState.FAILED, JobState.PENDING, Cause.RESUMED),
        (JobState.HALTED, JobState.CANCELLED, Cause.CANCELLED),
        *((end, end, Cause.STORED) for end in TERMINAL),
    }

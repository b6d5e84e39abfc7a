"""Resumes: who may go on, with what, and what is refused before anything is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import AttemptEnd, Change, Job, Overrides
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView, Resume
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.launch.network_level import ONLY_HOST
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.services.job_control.resume import resume_job
from ffdl_batch.services.job_control.stop import halt_job
from ffdl_batch.services.queries.jobs import get_events
from ffdl_batch.services.refusals import Refused
from tests.unit.services.conftest import MANIFEST, Site

END = AttemptEnd("halt", Checkpoint(asked=True, confirmed=True, answered=True, took_s=3.0, saved_at=50.0), 12.5)


def ended(
    site: Site, job: Job | None = None, state: JobState = JobState.HALTED, end: AttemptEnd = END, **columns: object
) -> Job:
    """The job, or one that was just deployed, whose attempt has ended."""
    code = "C201" if state is JobState.FAILED else "000"
    return site.move(job or site.deployed(), state, error_code=code, columns=columns, attempt_end=end)


def resume(site: Site, job: Job, **altered: object) -> JobView:
    return resume_job(
        site.platform.storage,
        site.platform.adapters,
        site.platform.store_checks,
        site.caller,
        job.id,
        Resume(**altered),  # type: ignore[arg-type]
    )


def refused(site: Site, job: Job, **altered: object) -> Refused:
    before = site.job(job.id)
    with pytest.raises(Refused) as refusal:
        resume(site, job, **altered)
    assert site.job(job.id) == before, "nothing is written"
    return refusal.value


def test_resume_warns_about_time_of_minutes_and_seconds_until_time_is_clear(site: Site) -> None:
    doubt = "--time: '24:00' means 24 minutes, as in Slurm (write 24:00:00 if you mean hours)"
    job = ended(site)
    plan = ("a warning of the plan",)
    assert resume(site, job, time="24:00").warnings == (*plan, doubt)
    site.clock.tick(60)
    site.deploy()
    ended(site, site.job(job.id))
    assert resume(site, job).warnings == (doubt, *plan), "the time limit stays"
    site.clock.tick(60)
    site.deploy()
    ended(site, site.job(job.id))
    assert resume(site, job, time="24:00:00").warnings == plan


@pytest.mark.parametrize("state", [JobState.HALTED, JobState.FAILED])
def test_resume_starts_new_attempt_of_halted_or_failed_job(site: Site, state: JobState) -> None:
    job = ended(site, None, state, spent=Spent(timeouts=50, fruitless=2))
    view = resume(site, job)
    assert (view.state, view.attempt, view.native_id, view.error_code, view.ended_at) == ("PENDING", 1, "", "000", None)
    assert site.job(job.id).spent == Spent()
    site.clock.tick(60)
    site.deploy()
    view = site.view(job)
    assert (view.state, view.attempt) == ("QUEUED", 2)
    assert [token for _, token in site.scheduler.submitted] == [f"{job.id}-1", f"{job.id}-2"]
    first, second = view.attempts
    assert (first.number, first.native_id, first.interruption, first.gpu_seconds) == (1, job.native_id, "halt", 12.5)
    assert (first.checkpoint_asked, first.checkpoint_confirmed, first.checkpoint_answered) == (True, True, True)
    assert (first.checkpoint_took_s, first.checkpoint_saved_at, first.upload_pending) == (3.0, 50.0, False)
    assert (second.number, second.native_id, second.ended_at) == (2, view.native_id, None)


def test_resume_plans_shows_and_records_changed_resources(site: Site) -> None:
    job = ended(site)
    view = resume(site, job, gpus=2.0, time="60")
    assert (view.gpus, view.sources["gpus"], view.sources["batch.time"]) == (2.0, "resume", "resume")
    planned = site.scheduler.planned[-1]
    assert (planned.attempt, planned.spec.resources.gpus, planned.spec.batch.time_s) == (2, 2.0, 3600)
    assert site.job(job.id).spec == job.spec, "what was submitted stays as it was"
    entries, _ = get_events(site.platform.storage.store, site.caller, job.id, 0)
    assert [(e.state, e.cause) for e in entries][-2:] == [("HALTED", "progress"), ("PENDING", "resumed")]
    assert entries[-1].message == "resumed by its owner with 2 GPUs per learner and time limit 01:00:00"


def test_resume_keeps_earlier_overrides_and_drops_node_exclusion(site: Site) -> None:
    job = ended(site, overrides=Overrides(2.0, 600, ("n7",)))
    resume(site, job, time="2h")
    assert site.job(job.id).overrides == Overrides(2.0, 7200)


ELASTIC = "learners: 2\nbatch: {elastic: {max_learners: 4, batch: {min: 32, max: 256, per_gpu_max: 64}}}\n"


def test_resume_starts_elastic_job_with_other_size_and_records_it(site: Site) -> None:
    job = site.accept("k", MANIFEST + ELASTIC)
    site.deploy()
    view = resume(site, ended(site, site.job(job.id)), learners=4, global_batch=200)
    assert (view.learners, view.overrides) == (4, {"learners": "4", "batch.elastic.batch": "200"})
    site.deploy()
    attempt, template = site.scheduler.planned[-2:]
    assert (attempt.attempt, template.attempt) == (2, 3)
    assert attempt.spec.resources.learners == template.spec.resources.learners == 4
    again = resume(site, ended(site, site.job(job.id)), global_batch=100)
    assert (again.learners, again.overrides["batch.elastic.batch"]) == (4, "100"), "the size stays"
    assert [(one.learners, one.global_batch) for one in again.attempts] == [(2, 32), (4, 200)]
    entries, _ = get_events(site.platform.storage.store, site.caller, job.id, 0)
    assert [e.message for e in entries if e.cause == "resumed"] == [
        "resumed by its owner with 4 learners and batch 200", "resumed by its owner with batch 100",
    ]  # fmt: skip


@pytest.mark.parametrize("altered", [{"learners": 2}, {"global_batch": 16}])
def test_resume_refuses_size_of_job_that_is_not_elastic(site: Site, altered: dict[str, object]) -> None:
    refusal = refused(site, ended(site), **altered)
    assert "is not elastic, so the number of learners and the batch cannot change" in refusal.problem.message


def test_resume_drops_start_conditions_that_earlier_attempt_already_met(site: Site) -> None:
    begin = "2027-01-20T12:34:00+00:00"
    extra = f"batch: {{dependency: 'afterok:training-00000000z', begin: '{begin}', hold: true}}\n"
    job = ended(site, site.accept("k", MANIFEST + extra))
    resume(site, job)
    assert site.scheduler.planned[-1].spec.batch.dependency == "afterok:training-00000000z", "it never had an attempt"
    site.deploy()
    again = ended(site, site.job(job.id))
    assert again.attempt == 1
    resume(site, again)
    batch = site.scheduler.planned[-1].spec.batch
    assert (batch.dependency, batch.begin, batch.hold) == ("", begin, True), "no attempt has begun"
    owner = Path(site.platform.storage.root.job(job.id).attempt(1).claim_owner)
    owner.parent.mkdir()
    owner.write_text("{}")
    site.deploy()
    resume(site, ended(site, site.job(job.id)))
    batch = site.scheduler.planned[-1].spec.batch
    assert (batch.dependency, batch.begin, batch.hold) == ("", "", False)
    first, second, third = (
        e for e in get_events(site.platform.storage.store, site.caller, job.id, 0)[0] if e.cause == "resumed"
    )
    assert first.message == "resumed by its owner"
    assert second.message == f"{first.message}; it no longer waits for batch.dependency of its submission"
    ignored = "; it no longer waits for batch.dependency and batch.begin and batch.hold of its submission"
    assert third.message == first.message + ignored


@pytest.mark.parametrize(("state", "words"), [(JobState.COMPLETED, "has completed"), (JobState.CANCELLED, "cancelled")])
def test_resume_refuses_completed_or_cancelled_job(site: Site, state: JobState, words: str) -> None:
    refusal = refused(site, ended(site, None, state))
    assert (refusal.status, refusal.problem.exit_code) == (409, 1)
    assert words in refusal.problem.message and "submit it again" in refusal.problem.cure


def test_resume_refuses_live_job_and_names_next_command(site: Site) -> None:
    job = site.deployed()
    refusal = refused(site, job)
    assert (refusal.status, refusal.problem.cure) == (409, f"to stop it first: ffdl halt {job.id}")
    assert "is QUEUED" in refusal.problem.message
    halt_job(site.platform.storage, site.platform.adapters, site.caller, job.id)
    assert refused(site, job).problem.cure == f"to wait for its end: ffdl wait {job.id}"


def test_resume_accepts_zero_gpus_and_refuses_job_that_was_already_resumed(site: Site) -> None:
    job = ended(site)
    assert resume(site, job, gpus=0.0).gpus == 0.0
    assert "is PENDING" in refused(site, job).problem.message


def test_resume_rejects_invalid_number_of_gpus_and_time_limit(site: Site) -> None:
    job = ended(site)
    gpus: list[object] = [-1.0, math.nan, math.inf, 1e9]
    times: list[object] = ["", "soon", "0", "-5", "1:2:3:4", "9" * 100]
    for option, value in [("gpus", one) for one in gpus] + [("time", one) for one in times]:
        refusal = refused(site, job, **{option: value})
        assert (refusal.status, refusal.problem.exit_code) == (400, 2), value
        assert refusal.problem.message.startswith(f"--{option}: "), value


def test_resume_rejects_resources_that_cannot_be_planned(site: Site) -> None:
    refusal = refused(site, ended(site), gpus=5.0)
    assert (refusal.status, refusal.problem.exit_code) == (422, 78)
    assert "no node has 5 GPUs" in refusal.problem.message


def test_resume_replaces_warnings_of_earlier_plan(site: Site) -> None:
    site.scheduler.warns = lambda spec: [f"gpus: {spec.resources.gpus:g} asked for"] if spec.resources.gpus else []
    job = ended(site, site.accept("k", MANIFEST + "unheard_of: 1\n"))
    (manifests, plans) = job.warnings
    assert "unheard_of" in manifests and plans == "gpus: 1 asked for"
    assert resume(site, job).warnings == (manifests, "gpus: 1 asked for"), "nothing was altered"
    view = resume(site, ended(site, site.job(job.id)), gpus=3.0)
    assert view.warnings == (manifests, "gpus: 3 asked for"), "what was said of the request before is no longer true"
    assert site.job(job.id).warnings == view.warnings
    assert resume(site, ended(site, site.job(job.id)), gpus=0.0).warnings == (manifests,)
    assert resume(site, ended(site, site.job(job.id)), gpus=1.0).warnings == job.warnings


STORE = (
    "data_stores:\n  - type: directory\n    training_data: {container: set}\n"
    "    connection: {path: /, password: planted-word}\nbatch: {secrets: {TOKEN: planted-token}}\n"
)


def test_resume_drops_credential_warnings_of_submission(site: Site) -> None:
    site.scheduler.warns = lambda _spec: ["a store could not be used from this host"]
    job = ended(site, site.accept("k", MANIFEST + STORE + "unheard_of: 1\n"))
    assert sum("moved to a secret at submission" in said for said in job.warnings) == 2, job.warnings
    site.scheduler.warns = lambda _spec: []
    (left,) = resume(site, job).warnings
    assert "unheard_of" in left


def test_resume_replaces_network_warning_with_current_one(site: Site) -> None:
    site.scheduler.warns = lambda _spec: [f"{ONLY_HOST}: nothing is known yet"]
    job = ended(site, site.accept("k", MANIFEST))
    site.scheduler.warns = lambda _spec: [f"{ONLY_HOST}: a canary got through"]
    assert resume(site, job).warnings == (f"{ONLY_HOST}: a canary got through",)


def test_resume_succeeds_when_earlier_overrides_can_no_longer_be_planned(site: Site) -> None:
    site.scheduler.warns = lambda spec: [f"gpus: {spec.resources.gpus:g} asked for"]
    job = ended(site, overrides=Overrides(gpus=99.0))
    assert resume(site, job, gpus=2.0).warnings == ("gpus: 1 asked for", "gpus: 2 asked for")


def test_resume_succeeds_when_scheduler_does_not_answer(site: Site) -> None:
    """The plan needs facts about the site, which are known from before; the deployer waits for the scheduler."""
    job = ended(site)
    site.scheduler.down = True
    assert resume(site, job).state == "PENDING"


@pytest.mark.parametrize("lacks", ["content store", "job directory"])
def test_resume_uses_model_archive_of_job_directory_or_content_store(site: Site, lacks: str) -> None:
    """The janitor empties the content store after a day."""
    job = ended(site)
    archive = Path(site.platform.storage.root.job(job.id).model_archive)
    (archive if lacks == "job directory" else Path(site.platform.storage.root.model(job.model_digest))).unlink()
    resume(site, job)
    site.clock.tick(60)
    site.deploy()
    assert (site.job(job.id).state, site.job(job.id).attempt) == (JobState.QUEUED, 2)
    assert archive.is_file()


def test_resume_is_refused_without_model_archive(site: Site) -> None:
    job = ended(site)
    directory = site.platform.storage.root.job(job.id)
    Path(directory.model_archive).unlink()
    Path(site.platform.storage.root.model(job.model_digest)).unlink()
    refusal = refused(site, job)
    assert (refusal.status, refusal.problem.code) == (422, "C102")
    assert directory.path in refusal.problem.message and directory.checkpoints in refusal.problem.cure


def test_resume_is_refused_when_job_was_resumed_concurrently(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ended(site)
    real = site.platform.storage.store.apply

    def late(seen: Job, change: Change) -> Job | None:
        real(seen, Change(((JobState.PENDING, site.clock.now()),), Cause.RESUMED, "by another command"))
        return real(seen, change)

    monkeypatch.setattr(site.platform.storage.store, "apply", late)
    with pytest.raises(Refused, match="is PENDING"):
        resume(site, job)


def test_resume_returns_404_for_job_of_another_user(site: Site) -> None:
    job = ended(site)
    with pytest.raises(Refused) as refusal:
        resume_job(
            site.platform.storage,
            site.platform.adapters,
            site.platform.store_checks,
            Caller(site.caller.uid + 1),
            job.id,
            Resume(),
        )
    assert refusal.value.status == 404


def test_resume_drops_begin_and_hold_after_node_failure_at_start(site: Site) -> None:
    """Its time to begin had come, though no controller ran."""
    job = site.accept("k", MANIFEST + "batch: {begin: now+1hour, hold: true}\n")
    site.deploy()
    job = ended(site, site.job(job.id), JobState.FAILED, AttemptEnd("node_failure"))
    resume(site, job)
    batch = site.scheduler.planned[-1].spec.batch
    assert (batch.begin, batch.hold) == ("", False)

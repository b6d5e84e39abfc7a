"""Attempts that a drill interrupted: recorded as that, charged to no budget, and the chain goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.continuation import Checkpoint, Spent
from ffdl_batch.domain.events import GoesOn, Outcome
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.observation import EndCause
from ffdl_batch.services.cancel import cancel_job
from ffdl_batch.services.control import Drill, write_control
from ffdl_batch.services.drill import drill
from ffdl_batch.services.halt import halt_job
from ffdl_batch.services.watch import Watcher
from tests.unit.services.chains import end, running
from tests.unit.services.conftest import Site


@pytest.mark.parametrize(("event", "why"), [("preempt", "preemption"), ("node-fail", "node_failure")])
def test_watcher_records_drilled_interruption_without_charging_retry_budget(
    site: Site, watcher: Watcher, event: str, why: str
) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    head.saves()
    write_control(site.platform.root, job, drill=Drill(event))
    head.ends(Outcome.CANCELLED if event == "preempt" else Outcome.FAILED, error_code="S106", stored=False)
    end(site, watcher, job, EndCause.FAILURE)
    after = site.job(job.id)
    assert (after.state, after.spent.preemptions, after.spent.node_failures) == (JobState.PENDING, 0, 0)
    (attempt,) = site.platform.store.attempts(job.id)
    assert (attempt.interruption, attempt.played) == (why, True)
    said = {"preemption": "a drill played a preemption", "node_failure": "a drill played a node failure"}[why]
    assert site.platform.store.history(job.id)[-1].message == f"{said}; a checkpoint was saved"


@pytest.mark.parametrize("event", ["", "halt"], ids=["in earnest", "played"])
@pytest.mark.parametrize("with_record", [True, False], ids=["told by the head", "without a word of the head"])
def test_watcher_records_halt_as_drill_only_if_drill_requested_it(
    site: Site, watcher: Watcher, event: str, with_record: bool
) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    said = "a drill played a halt" if event else "halted on request"
    halt = drill(site.platform, site.caller, job.id, event) if event else halt_job(site.platform, site.caller, job.id)
    assert halt.wish == "halt"
    if with_record:
        head.ends(Outcome.HALTED, interruption="halt", played=bool(event), message=f"{said}; checkpoint confirmed")
    end(site, watcher, job, EndCause.SUCCESS if with_record else EndCause.CANCELLED)
    assert site.job(job.id).state is JobState.HALTED
    (attempt,) = site.platform.store.attempts(job.id)
    assert (attempt.interruption, attempt.played) == ("halt", bool(event))
    assert site.platform.store.history(job.id)[-1].message.startswith(f"{said}; ")


def test_watcher_records_cancel_after_drilled_halt_as_real_cancel(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    running(site, watcher, job)
    drill(site.platform, site.caller, job.id, "halt")
    cancel_job(site.platform, site.caller, job.id)
    end(site, watcher, job, EndCause.CANCELLED)
    (attempt,) = site.platform.store.attempts(job.id)
    assert (site.job(job.id).state, attempt.played) == (JobState.CANCELLED, False)


def test_watcher_records_drilled_time_limit_without_charging_retry_budget(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    message = "a drill played a time limit; checkpoint confirmed after 2.0 s"
    head.begins_successor()
    head.ends(
        Outcome.HALTED,
        interruption="timeout",
        played=True,
        goes_on=GoesOn.SUCCESSOR,
        spent=Spent(gpu_seconds=60.0),
        message=message,
    )
    watcher.step(full=False)
    after = site.job(job.id)
    assert (after.state, after.attempt, after.spent) == (JobState.DEPLOYING, 2, Spent(gpu_seconds=60.0))
    first = site.platform.store.attempts(job.id)[0]
    assert (first.interruption, first.played) == ("timeout", True)
    assert site.platform.store.history(job.id)[-1].message == message


def test_watcher_continues_after_drilled_time_limit_when_head_could_not_submit(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    message = "a drill played a time limit; checkpoint confirmed after 2.0 s; sbatch ended with 1"
    head.ends(
        Outcome.HALTED,
        interruption="timeout",
        played=True,
        goes_on=GoesOn.PLATFORM,
        spent=Spent(),
        message=message,
        checkpoint=Checkpoint(asked=True, confirmed=True, answered=True, took_s=2.0),
    )
    end(site, watcher, job, EndCause.SUCCESS)
    after = site.job(job.id)
    assert (after.state, after.spent.timeouts) == (JobState.PENDING, 0)
    assert site.platform.store.history(job.id)[-1].message == message


def test_watcher_ignores_drill_of_earlier_run_for_later_end(site: Site, watcher: Watcher) -> None:
    job = site.deployed()
    head = running(site, watcher, job)
    write_control(site.platform.root, job, drill=Drill.NODE_FAIL)
    claims = site.platform.root.job(job.id).attempt(1)
    for run in (1, 2):
        Path(claims.run_claim(run)).mkdir()
    head.ends(Outcome.FAILED, error_code="S106", stored=False)
    end(site, watcher, job, EndCause.FAILURE)
    attempt = site.platform.store.attempts(job.id)[0]
    assert (attempt.interruption, attempt.played) == ("node_failure", False)
    assert site.job(job.id).spent.node_failures == 1

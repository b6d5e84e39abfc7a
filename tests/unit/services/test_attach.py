"""Who gets to which learner, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import Seat, decode, encode
from ffdl_batch.domain.outcome.controller_events import EventKind as K
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerError, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import AttemptNode, NodeProgram
from ffdl_batch.services.queries.attach_plan import plan_attach
from ffdl_batch.services.refusals import Refused
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import MANIFEST, Site
from tests.unit.services.test_learners import Node


@dataclass
class Reaching(FakeScheduler):
    """A backend with nodes that can be reached."""

    places: list[AttemptNode] = field(default_factory=list)
    refuses: SchedulerError | None = None

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
        if self.refuses is not None:
            raise self.refuses
        self.places.append(place)
        return NodeProgram(("go", *argv), unset=("X_",))


@pytest.fixture
def scheduler(site: Site) -> Reaching:
    made = Reaching()
    site.platform.adapters.use("fake", made)
    site.scheduler = made
    return made


def processing(site: Site, state: JobState = JobState.PROCESSING) -> Job:
    """A job of two learners on one node, both started."""
    accepted = site.accept(manifest=MANIFEST + "learners: 2\n")
    site.deploy()
    job = site.job(accepted.id)
    path = Path(site.attempt(job).launch)
    path.write_text(encode(replace(decode(path.read_text()), learners=2, learners_per_node=2)))
    updated = site.platform.storage.store.apply(job, Change(((state, site.clock.now()),)))
    assert updated is not None
    return updated


def refusal(site: Site, job: Job, learner: int | None = 1, caller: Caller | None = None) -> Refused:
    with pytest.raises(Refused) as refused:
        plan_attach(site.platform.storage, site.platform.adapters, caller or site.caller, job.id, learner)
    return refused.value


def test_plan_attach_returns_command_for_one_or_all_learners_of_node(site: Site, scheduler: Reaching) -> None:
    job = processing(site)
    node = Node(site, job)
    node.says(K.STARTED, host="n1.site", allocation="77")
    node.begins(1).begins(2)
    (plan,) = plan_attach(site.platform.storage, site.platform.adapters, site.caller, job.id, 2)
    (place,) = scheduler.places
    assert (place.allocation, place.node_rank, str(place.native_id)) == ("77", 0, job.native_id)
    assert plan.argv[-7:] == ("attach", "--job", job.id, "--attempt", "1", "--learners", "2")
    assert (plan.argv[0], plan.learners, plan.node, plan.unset) == ("go", (2,), "n1", ("X_",))
    (both,) = plan_attach(site.platform.storage, site.platform.adapters, site.caller, job.id, None)
    assert (both.learners, both.argv[-1]) == ((1, 2), "1,2")


@pytest.mark.parametrize("ended", [0, 1])
def test_gang_is_processing_and_reachable_while_one_of_its_learners_runs(
    site: Site, scheduler: Reaching, ended: int
) -> None:
    accepted = site.accept(manifest=MANIFEST + "learners: 2\n")
    site.deploy()
    job = site.job(accepted.id)
    path, head = Path(site.attempt(job).launch), site.head(job)
    launch = replace(decode(path.read_text()), learners=2, nodes=2, seats=(Seat(0), Seat(1)))
    path.write_text(encode(launch))
    site.scheduler.run(NativeId(job.native_id))
    head.says("head", K.CLAIMED, native_id=job.native_id, restart=0)
    for rank in (0, 1):
        head.says(f"node-{rank}", K.STARTED, host=f"n{rank + 1}", allocation="77")
        head.says(f"node-{rank}", K.LEARNER_STARTED, learner_id=rank + 1)
        head.beats(rank)
    head.says(f"node-{ended}", K.LEARNER_ENDED, learner_id=ended + 1, exit_code=0)
    head.says(f"node-{ended}", K.PHASE, phase="store-results", status="started")
    head.says(f"node-{ended}", K.STORED, learner_id=ended + 1)
    site.watch()
    assert site.job(job.id).state is JobState.PROCESSING
    why = site.platform.explainer.explain_job(site.caller, job.id)
    assert why.sentence.startswith("it is not waiting: it has been running since"), why
    left = 2 - ended
    for learner in (None, left):  # ffdl top and stack enter all, ffdl exec one
        (plan,) = plan_attach(site.platform.storage, site.platform.adapters, site.caller, job.id, learner)
        assert (plan.learners, plan.node) == ((left,), f"n{left}")
    told = refusal(site, job, ended + 1).problem
    assert (told.message, told.cure) == (f"learner {ended + 1} of {job.id} ended with exit code 0", f"running: {left}")
    head.says(f"node-{1 - ended}", K.LEARNER_ENDED, learner_id=left, exit_code=0)
    site.watch()
    assert site.job(job.id).state is JobState.STORING
    assert refusal(site, job, None).problem.cure == "its learners have ended; ffdl logs shows their output"


def test_plan_attach_rejects_ended_or_unknown_learner(site: Site, scheduler: Reaching) -> None:
    job = processing(site)
    node = Node(site, job).begins(1).begins(2).ends(2, 7)
    told = refusal(site, job, 2)
    assert (told.status, told.problem.message, told.problem.cure) == (
        409,
        f"learner 2 of {job.id} ended with exit code 7",
        "running: 1",
    )
    (plan,) = plan_attach(site.platform.storage, site.platform.adapters, site.caller, job.id, None)
    assert plan.learners == (1,)
    assert (refusal(site, job, 3).status, "has learners 1 to 2" in refusal(site, job, 3).problem.message) == (400, True)
    node.ends(1, 0)
    assert refusal(site, job, None).problem.message == f"no learner of {job.id} runs now"


@pytest.mark.parametrize("state", [JobState.DOWNLOADING, JobState.STORING, JobState.COMPLETED])
def test_plan_attach_rejects_job_that_is_not_processing(site: Site, scheduler: Reaching, state: JobState) -> None:
    job = processing(site, state)
    told = refusal(site, job)
    assert (told.status, told.problem.message) == (409, f"{job.id} is {state}: only a running learner can be entered")


def test_plan_attach_rejects_other_users_and_administrators(site: Site, scheduler: Reaching) -> None:
    job = processing(site)
    assert refusal(site, job, caller=Caller(site.caller.uid + 1)).status == 404
    assert refusal(site, job, caller=Caller(site.caller.uid + 1, is_admin=True)).status == 403


@pytest.mark.parametrize(
    ("error", "status", "exit_code", "message"),
    [
        (InvalidRequest("pod 0 does not run"), 422, 69, "pod 0 does not run"),
        (SchedulerMissing("no cluster is configured"), 422, 69, "no cluster is configured"),
        (SchedulerUnreachable("Pods cannot be listed"), 503, 75, "fake does not answer: Pods cannot be listed"),
    ],
)
def test_plan_attach_is_refused_for_good_only_if_scheduler_answers_that_learner_cannot_be_reached(
    site: Site, scheduler: Reaching, error: SchedulerError, status: int, exit_code: int, message: str
) -> None:
    job = processing(site)
    Node(site, job).begins(1).begins(2)
    scheduler.refuses = error
    told = refusal(site, job)
    assert (told.status, told.problem.exit_code, told.problem.message) == (status, exit_code, message)

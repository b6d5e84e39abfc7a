"""Plans how a job's owner enters its running learners, to debug them. It starts and changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.job.elastic import halted_for_size
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.learners import hosts_of, learner_list
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import LearnerState, LearnerView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.attach_protocol import AttachPlan
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.learner_text import describe_end
from ffdl_batch.domain.outcome.attempt_reports import latest_run
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, node_source
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing, SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import AttemptNode
from ffdl_batch.services.authorisation import refuse_local_backend
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.outcome.attempt_records import read_events, read_launch
from ffdl_batch.services.queries.jobs import own_job, require_learner
from ffdl_batch.services.refusals import not_allowed, try_again, unavailable, wrong_state

_CURES = {
    JobState.HALTED: "ffdl resume continues it",
    JobState.STORING: "its learners have ended; ffdl logs shows their output",
}
_EARLIER = (JobState.PENDING, JobState.DEPLOYING, JobState.QUEUED, JobState.DOWNLOADING)


def plan_attach(
    storage: JobStorage, adapters: Adapters, caller: Caller, job_id: str, learner: int | None
) -> tuple[AttachPlan, ...]:
    """Return a plan for each node: how to enter one learner, or all that run (`learner` None).

    Raises :class:`Refused` if the job is not in PROCESSING or the learner does not run, for a caller who may not start
    programs on its host, and OSError.
    """
    job = own_job(storage.store, caller, job_id)
    if job.uid != caller.uid:
        raise not_allowed(f"{job.id} is another user's: only the owner may enter its learners")
    refuse_local_backend(caller, job.backend)
    if job.state is not JobState.PROCESSING or not job.native_id:
        raise wrong_state(f"{job.id} is {job.state}: only a running learner can be entered", _cure(storage, job))
    attempt = storage.root.job(job.id).attempt(job.attempt)
    launch = read_launch(attempt)
    if launch is None:
        raise try_again("S101", f"the launch file of {job.id} cannot be read now")
    events = latest_run(read_events(attempt))
    wanted = _choose(job, launch, learner_list(launch, events, is_over=False), learner)
    adapter, facts = adapters.get(job.backend), _facts(adapters, job.backend)
    allocations, hosts = _allocations(events), hosts_of(events)
    plans = []
    for rank, numbers in sorted(wanted.items()):
        source, named = node_source(rank), ",".join(map(str, numbers))
        argv = (facts.python, *facts.controller, "attach", "--job", job.id, "--attempt", str(job.attempt))
        place = AttemptNode(NativeId.parse(job.native_id), attempt, allocations.get(source, ""), rank)
        try:
            program = adapter.beside(place, (*argv, "--learners", named))
        except (InvalidRequest, SchedulerMissing) as error:
            raise unavailable(str(error)) from error
        except SchedulerUnreachable as error:
            raise try_again("S200", f"{job.backend} does not answer: {error}") from error
        node = hosts.get(source, "")
        plans.append(AttachPlan(program.argv, tuple(numbers), node, program.host, program.unset, program.keep))
    return tuple(plans)


def _cure(storage: JobStorage, job: Job) -> str:
    if job.state in _EARLIER:
        return "wait until it is PROCESSING: ffdl events --follow"
    if job.spec.batch.elasticity is not None and storage.store.elastic.continued([job]):
        return halted_for_size(job.spec.batch.elasticity.pool)
    return _CURES.get(job.state, "ffdl logs shows the output of its learners")


def _choose(job: Job, launch: LaunchFile, learners: Sequence[LearnerView], wanted: int | None) -> dict[int, list[int]]:
    """Return the numbers of the learners to enter, by the rank of their node."""
    require_learner(job, wanted)
    running = [one for one in learners if one.state == LearnerState.RUNNING]
    if wanted is not None:
        one = learners[wanted - 1]
        if one not in running:
            said = (
                describe_end(one.exit_code, one.exit_signal) if one.state == LearnerState.ENDED else f"is {one.state}"
            )
            others = ", ".join(str(other.number) for other in running) or "none"
            raise wrong_state(f"learner {wanted} of {job.id} {said}", f"running: {others}")
        running = [one]
    if not running:
        raise wrong_state(f"no learner of {job.id} runs now", "ffdl show lists their states")
    found = defaultdict(list)
    for one in running:
        found[launch.seat_of(one.number).node].append(one.number)
    return found


def _allocations(events: Sequence[Event]) -> dict[str, str]:
    """Return the name of the allocation that each node controller reported."""
    started = (event for event in events if event.kind is EventKind.STARTED)
    return {event.source: str(event.fields.get("allocation") or "") for event in started}


def _facts(adapters: Adapters, backend: str) -> BackendFacts:
    try:
        return adapters.facts(backend)
    except SchedulerUnreachable as error:
        raise try_again("S200", f"the backend {backend} has not described itself yet: {error}") from error

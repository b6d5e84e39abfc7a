"""Fill what is the same in the launch plans of all backends. Pure: no clock, no file, no network."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.learner_layout import Gang
from ffdl_batch.domain.job.metric_collection import collecting_of
from ffdl_batch.domain.job.secret_references import secret_variables
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.launch_file import LaunchFile, Signature, Succession, encode
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.metrics.records import REGEX, Collecting
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest, PlannedFile
from ffdl_batch.runtimes.learner_start import (
    RequestRefused,
    Runtime,
    Start,
    Subject,
    compose_start,
    controller_arguments,
    refusal,
)

_START_COLLECTORS = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from ffdl_batch.collectors.__main__ import main; sys.exit(main())"
)


@dataclass(frozen=True, slots=True)
class BasePlan:
    """The start of the learners, and the launch file without the fields that only the backend knows."""

    backend: str
    start: Start
    launch: LaunchFile
    warnings: tuple[str, ...] = ()
    """Of metrics that cannot be collected."""


def require_image(request: LaunchRequest) -> None:
    """Raise RequestRefused if the framework has no image."""
    if not request.image:
        framework = request.spec.framework
        message = f"there is no image for {framework.name} {framework.version}"
        raise RequestRefused([refusal("framework", message, "name one in [frameworks] of the configuration", "S103")])


def plan_base(
    request: LaunchRequest, gang: Gang, runtime: Runtime, backend: str, *, tree: str = "", apart: bool = False
) -> BasePlan:
    """Plan the start of the learners and fill the launch file. Raises RequestRefused.

    `tree` is where the nodes have the tree of jobs ("" = where the daemon has it). With `apart` an attempt sees no
    files of the job's other attempts, and a learner none of other learners.
    """
    job = Root(tree).job(request.job_id) if tree else request.job_dir
    attempt = job.attempt(request.attempt) if tree else request.attempt_dir
    store, failures = request.results_store, request.budget.failures
    subject = Subject(request.job_id, request.spec, gang, job, attempt, store, failures, request.attempt, apart)
    start = compose_start(subject, runtime)
    facts = request.facts
    metrics = plan_metrics(request.spec, facts.python, facts.controller, facts.staging)
    launch = _fill(request, subject, start)
    launch = replace(
        launch,
        collectors=metrics.collectors,
        metrics=metrics.metrics,
        signature=plan_signature(runtime, request.signers),
        written_by=f"{backend} {_release()}",
    )
    return BasePlan(backend, start, launch, metrics.warnings)


def plan_signature(runtime: Runtime, signers: tuple[str, ...]) -> Signature | None:
    """Plan how nodes check the signature of an image file. Return None if it needs none."""
    if not signers or not runtime.image.startswith("/"):
        return None
    return Signature((runtime.program, "verify", "--local", "--json", runtime.image), signers)


def _fill(request: LaunchRequest, subject: Subject, start: Start) -> LaunchFile:
    spec, gang, meeting, checkpoint = request.spec, subject.gang, start.rendezvous, request.spec.batch.checkpoint
    return LaunchFile(
        job_id=request.job_id,
        attempt=request.attempt,
        trains_from=request.trains_from,
        token=request.token,
        job_dir=subject.job.path,
        attempt_dir=subject.attempt.path,
        doorbell=request.doorbell,
        learner=start.learner,
        learners=len(gang.members),
        nodes=gang.nodes,
        seats=gang.table,
        names=meeting.names,
        ports=meeting.ports,
        command=meeting.command,
        commands=meeting.commands,
        restart=meeting.restart,
        restarts_max=meeting.restarts_max,
        model_archive=subject.job.model_archive,
        copies=start.data.copies,
        fetches=start.data.fetches,
        uploads=start.data.uploads,
        staging=start.staging,
        cache=start.cache,
        mounts=start.mounts,
        stores=start.data.stores,
        umask=spec.umask,
        gid=spec.gid,
        limits=Limits(
            grace_s=checkpoint.grace_s,
            time_s=spec.batch.limit_s,
            lead_s=request.lead_s,
            lead_from=request.lead_from,
            hang_s=float(spec.batch.hang_s),
            idle=spec.batch.idle,
        ),
        logs=request.logs,
        checkpoint_saved_by=checkpoint.saved_by.value,
        checkpoint_signal=checkpoint.signal.removeprefix("SIG"),
        make_dirs=start.make_dirs,
        needs_dirs=start.data.needs_dirs,
        echo_output=bool(spec.batch.output),
        checkpoints=start.checkpoints,
        carry=request.carry,
        confirmed=request.confirmed,
        secrets=secret_variables(spec),
    )


def base_succession(request: LaunchRequest, gpus: float) -> Succession:
    """Return how the head arranges the next attempt if the process that started this attempt submits it."""
    template = request.job_dir.template.path
    return Succession(template, budget=request.budget, spent=request.spent, gpus=float(gpus), lead_s=request.lead_s)


def assemble(request: LaunchRequest, base: BasePlan, launch: LaunchFile, warnings: Collection[str] = ()) -> LaunchPlan:
    """Return the plan with the files that all backends have: the launch file `launch` and the user's environment.

    `warnings` are the backend's own.
    """
    user = json.dumps(dict(request.user_env), sort_keys=True, ensure_ascii=False, indent=1) + "\n"
    learner = base.start.learner
    return LaunchPlan(
        backend=base.backend,
        token=request.token,
        attempt_dir=request.attempt_dir,
        launch=launch,
        files=(PlannedFile("launch.json", encode(launch)), PlannedFile("environment.json", user)),
        environment=_merge(learner.env, request.user_env, learner.protected),
        network=launch.network,
        warnings=(*base.start.data.warnings, *warnings, *base.warnings),
    )


def _merge(contract: Mapping[str, str], user: Mapping[str, str], protected: Collection[str]) -> dict[str, str]:
    """Return the learner's environment: the user's variables replace the contract's, except the protected ones."""
    return {**user, **{name: value for name, value in contract.items() if name in protected or name not in user}}


@lru_cache(maxsize=1)
def _release() -> str:
    """Return this release's version. (The top package offers it too, but imports the client.)"""
    return version("ffdl-batch")


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """The launch file's `collectors` and `metrics`; `warnings` for the plan."""

    collectors: tuple[str, ...] = ()
    metrics: Collecting | None = None
    warnings: tuple[str, ...] = ()


def plan_metrics(spec: JobSpec, python: str, controller: tuple[str, ...], staging: tuple[str, ...] = ()) -> MetricPlan:
    """Plan which program collects the metrics on the nodes. An elastic job without evaluation_metrics gets a collector
    for the reports of its learners.

    `controller` is the argv after `python` that starts the controller. If it starts this installation and not an
    archive, nodes see the collectors too. Otherwise the installation that `staging` starts has them. An interpreter
    that the site names for its nodes may have them; if it does not, the job gets a warning when it runs.
    """
    metrics = collecting_of(spec.metrics)
    if metrics is None and spec.batch.elasticity is not None:
        metrics = Collecting(REGEX)
    if metrics is None:
        return MetricPlan()
    place = controller[-1] if controller else ""
    if controller == controller_arguments(place) and not place.endswith(".pyz"):
        return MetricPlan((python, "-I", "-c", _START_COLLECTORS, place), metrics)
    interpreter = staging[0] if staging else python
    if interpreter.startswith("/"):
        return MetricPlan((interpreter, "-I", "-m", "ffdl_batch.collectors"), metrics)
    message = "compute nodes do not see this installation, so nothing collects metrics there"
    cure = "put it on a file system that nodes share, or name an interpreter in staging_python"
    return MetricPlan(warnings=(f"evaluation_metrics: {message} ({cure})",))

"""Plan one attempt on this machine. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace

from ffdl_batch.domain.backend_facts import NodeShape
from ffdl_batch.domain.job.learner_layout import PS_COUNT, Gang, lay_on_one, members_of, parts_of
from ffdl_batch.domain.job.spec import SITE_DEFAULT, JobSpec, NetworkLevel
from ffdl_batch.domain.launch.launch_file import NodeCache
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_size
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.runtimes.apptainer import GpuLibraries
from ffdl_batch.runtimes.launch_plan import assemble, base_succession, plan_base, require_image
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest, PlannedFile
from ffdl_batch.runtimes.learner_start import RequestRefused, Runtime, choose_network, refusal, refuse_unsupported
from ffdl_local.records import JOB_FILE
from ffdl_local.settings import LocalSettings

BACKEND = "local"
KILL_WAIT_S = 30
# The head keeps to kill_wait_s; the supervisor's KILL is for a head that does not.
SUPERVISOR_MARGIN_S = 10
_START = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from ffdl_local.supervisor import main; sys.exit(main())"
)
_CONTAINER_PATHS = ("/job/", "/mnt/data", "/mnt/results")
_NAMES = (PS_COUNT, "LEARNER_NAME_PREFIX", "DOWNWARD_API_POD_NAME")
"""Variables from which programs, such as FfDL's parameter servers, make the learners' names."""
_WITHOUT_MEANING = (
    "partition", "account", "qos", "constraint", "reservation", "priority", "preemptible", "requeue", "signal",
    "comment", "nodelist", "exclude",
)  # fmt: skip
_LEAST_LEARNERS, _LEARNERS_PER_CPU = 64, 16
"""How many learners of one job a machine runs at most: as many as it has CPUs times the second, or the first."""
_REFUSED = ("dependency", "begin", "hold")


def make_plan(request: LaunchRequest, settings: LocalSettings, queue: str, packages: str) -> LaunchPlan:
    """Return the launch plan. `queue` is the queue directory of the machine. `packages` has the directories of this
    package and of ffdl_batch, joined by a colon.

    Raises InvalidRequest.
    """
    spec, facts = request.spec, request.facts
    _refuse(spec)
    if not facts.python or not facts.nodes:
        raise InvalidRequest("this machine was not examined yet; nothing can be planned")
    machine = facts.nodes[0]
    _refuse_crowd(spec, machine)
    controller = (facts.python, *facts.controller)
    gang, gpu_warnings = _seat(spec, sum(machine.gpus.values()), settings.require_gpus)
    gpus = gang.gpus
    contained = settings.runtime == "apptainer"
    if contained:
        require_image(request)
    by = "apptainer --net --network none" if contained else "user and network namespace (ffdl-controller isolate)"
    provable = {level: "none" if level is NetworkLevel.HOST else by for level in facts.network_levels}
    network = choose_network(spec, provable, request.minimum_network)
    runtime = Runtime(
        image=request.image if contained else "",
        program=settings.apptainer,
        gpus=GpuLibraries.NVIDIA if gpus and contained else GpuLibraries.NONE,
        controller=controller,
        network=NetworkLevel(network.level),
        staging=facts.staging,
        cache=NodeCache(request.cache_dir, request.cache_bytes) if request.cache_dir else None,
        images=request.images_dir,
        mounting=request.mounting,
    )
    base = plan_base(request, gang, runtime, BACKEND)
    launch = replace(
        base.launch,
        learners_per_node=len(gang.members),
        limits=replace(base.launch.limits, kill_wait_s=KILL_WAIT_S),
        network=network,
        scratch_base=settings.scratch_base,
        succession=base_succession(request, gpus),  # the supervisor of this attempt starts the next one
    )
    job = {
        "token": request.token,
        "attempt_dir": request.attempt_dir.path,
        "argv": [*controller, "head", "--launch", request.attempt_dir.launch],
        "log": _output(request),
        "umask": spec.umask,
        "queue": queue,
        "max_jobs": max_jobs(settings, machine),
        "gpus": gpus,
        "machine_gpus": sum(machine.gpus.values()),
        "kill_wait_s": KILL_WAIT_S + SUPERVISOR_MARGIN_S,
    }
    job_file = f"{request.attempt_dir.path}/{JOB_FILE}"
    plan = assemble(request, base, launch, (*gpu_warnings, *_warn_of_size(spec, machine), *_hints(spec, contained)))
    return replace(
        plan,
        files=(PlannedFile(JOB_FILE, json.dumps(job, indent=1, sort_keys=True) + "\n"), *plan.files),
        submit_argv=(facts.python, "-I", "-S", "-c", _START, packages, job_file),
    )


def max_jobs(settings: LocalSettings, machine: NodeShape) -> int:
    """Return how many jobs may run at once."""
    return settings.max_jobs or max(1, machine.cpus)


def _refuse(spec: JobSpec) -> None:
    """Refuse options that would change when or whether the job runs, but cannot here."""
    asked = [name for name in _REFUSED if getattr(spec.batch, name)]
    if asked:
        message = "jobs of the local backend start as soon as the machine has a slot"
        raise RequestRefused([refusal(f"batch.{name}", message, "leave it out, or use Slurm") for name in asked])
    refuse_unsupported(spec)


def _refuse_crowd(spec: JobSpec, machine: NodeShape) -> None:
    """Refuse more learners than this machine can run at all: each is several processes."""
    most, learners = max(_LEAST_LEARNERS, _LEARNERS_PER_CPU * machine.cpus), spec.resources.learners
    if learners > most:
        there = counted(machine.cpus, "CPU")
        message = f"a job on this machine, which has {there}, has at most {most} learners, not {learners}"
        raise RequestRefused([refusal("learners", message, "ask for fewer learners, or use Slurm", "C104")])


def _seat(spec: JobSpec, there: int, required: bool) -> tuple[Gang, tuple[str, ...]]:
    """Place all learners on this machine. If it has no GPUs, the job runs on the CPU unless GPUs are `required`."""
    gang = lay_on_one(members_of(spec))
    asking = [part for part in parts_of(spec) if part.gpus > 0]
    if not asking:
        return gang, ()
    if there == 0 and not required:
        notes = (
            f"{part.path('gpus')}: {part.gpus:g} asked for, but this machine has none; the job runs on the CPU"
            for part in asking
        )
        without = [replace(one, load=replace(one.load, gpus=0)) for one in gang.members]
        return lay_on_one(without), tuple(dict.fromkeys(notes))
    shares = [part for part in asking if part.gpus != int(part.gpus)]
    if shares:
        message = f"{shares[0].gpus:g} GPUs: shares of a GPU are not offered here"
        raise RequestRefused([refusal(shares[0].path("gpus"), message, "ask for whole GPUs", "C104")])
    if gang.gpus > there:
        message = f"{counted(gang.gpus, 'GPU')} in all, but this machine has {there}"
        raise RequestRefused([refusal(asking[0].path("gpus"), message, "ask for fewer GPUs or learners", "C104")])
    return gang, ()


def _warn_of_size(spec: JobSpec, machine: NodeShape) -> Iterator[str]:
    """Yield a warning for CPUs and memory that the machine does not have. They are not enforced, so the job runs."""
    parts = parts_of(spec)
    cpus = sum(part.cpus * part.learners for part in parts)
    memory = sum(part.memory_bytes * part.learners for part in parts)
    own = {key for part in parts for key in part.own}
    if cpus > machine.cpus and ("cpus" in own or spec.sources.get("cpus") != SITE_DEFAULT):
        yield f"cpus: {cpus:g} asked for, but this machine has {machine.cpus}; the job runs on those"
    if memory > machine.memory_bytes and ("memory" in own or spec.sources.get("memory") != SITE_DEFAULT):
        there = format_size(machine.memory_bytes)
        yield f"memory: {format_size(memory)} asked for, but this machine has {there}; the job runs with that"


def _output(request: LaunchRequest) -> str:
    """Return the file for the output of the head and the learners. Replace sbatch's patterns that apply here."""
    asked = request.spec.batch.output
    if not asked:
        return request.attempt_dir.batch_log
    element = request.spec.element
    index = str(element.index) if element is not None else ""
    patterns = {"%%": "%", "%j": request.token, "%A": request.token, "%x": request.token, "%a": index}
    text, rest = "", asked
    while rest:
        step = 2 if rest[:2] in patterns else 1
        text += patterns.get(rest[:2], rest[:1])
        rest = rest[step:]
    return os.path.join(request.spec.base_dir or "/", text)  # noqa: PTH118 - pure, nothing is touched


def _hints(spec: JobSpec, contained: bool) -> tuple[str, ...]:
    asked = {f"batch.{name}": getattr(spec.batch, name) for name in _WITHOUT_MEANING}
    asked |= {
        "batch.gres": spec.resources.gres,
        "storage": spec.resources.storage_bytes,
    }
    if spec.batch.slurm_args:
        asked[f"batch.slurm: {', '.join(spec.batch.slurm_args)}"] = True
    ignored = [f"{path}: has no effect on this machine" for path, given in asked.items() if given]
    if spec.batch.notify.mail_user or spec.batch.notify.events:
        ignored.append("batch.notify: no scheduler sends mail here; the daemon mails incidents if the configuration "
                       "names a relay")  # fmt: skip
    literal = [path for path in _CONTAINER_PATHS if path in spec.framework.command]
    if literal and not contained:
        ignored.append(
            f"framework.command: {literal[0]} exists inside containers only; use $DATA_DIR, $RESULT_DIR or "
            "$JOB_STATE_DIR, or set runtime to apptainer in [backend.local]"
        )
    named = [] if contained or spec.resources.learners == 1 else [text for text in _NAMES if text in _all_text(spec)]
    if named:
        ignored.append(
            f"framework.command: {named[0]} uses names of learners, which resolve in containers only: here all "
            "learners are at $MASTER_ADDR; set runtime to apptainer in [backend.local]"
        )
    return tuple(ignored)


def _all_text(spec: JobSpec) -> str:
    """Return the commands of the learners, and the variables beside them."""
    env = (f"{name}={value}" for name, value in spec.batch.env.items())
    return " ".join((spec.framework.command, *(role.command for role in spec.batch.roles.values()), *env))

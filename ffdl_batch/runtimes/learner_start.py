"""From a job's specification to what its learners are started with: data, directories, argv, environment, network.

Every adapter that starts learners itself (Slurm, this machine) asks here, so that a manifest means the same on
all of them. Pure; refusals are :class:`RequestRefused`, which adapters hand on as their port's errors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from types import MappingProxyType

from ffdl_batch.domain.data.image_task import is_convertible
from ffdl_batch.domain.data.mounts import Mounting, Mounts
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.array import element_environment, is_array
from ffdl_batch.domain.job.data_stores import StoreRefused
from ffdl_batch.domain.job.learner_layout import parts_of, takes_for_one
from ffdl_batch.domain.job.secret_references import image_credentials
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job.spec_errors import find_mistakes
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LearnerCommand, Network, NodeCache
from ffdl_batch.domain.launch.network_level import OVERLAYS, NetworkLevel
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.runtimes.apptainer import Container, GpuLibraries, NetworkMode, apptainer_argv
from ffdl_batch.runtimes.data import Data, place_data, plan_mounts
from ffdl_batch.runtimes.data import Subject as Subject  # noqa: PLC0414 - whoever plans a start names it here
from ffdl_batch.runtimes.learner_contract import (
    DATA_DIR,
    PROTECTED,
    SHELL,
    Bind,
    Layout,
    Learners,
    bare_layout,
    checkpoints_on_host,
    container_layout,
    learner_environment,
)
from ffdl_batch.runtimes.plain_process import bare_argv, isolated_argv
from ffdl_batch.runtimes.pod import PodMount, learner_mounts, stand_in_argv
from ffdl_batch.runtimes.rendezvous import Rendezvous, arrange, environment, name_prefix
from ffdl_batch.runtimes.slurm_environment import SLURM_SHELL, slurm_variables

_UNSEEN = "the nodes do not see this installation, which {} there"
_SEEN = "put it on a file system that nodes share, or name an interpreter in staging_python"
_TIGHTNESS = (NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS, NetworkLevel.HOST)


class RequestRefused(ValueError):
    """A request that cannot be planned. `not_yet`: it is right, but this release cannot do it."""

    def __init__(self, findings: Collection[Finding], not_yet: bool = False) -> None:
        self.findings, self.not_yet = tuple(findings), not_yet
        super().__init__("; ".join(_sentence(finding) for finding in self.findings))


def _sentence(finding: Finding) -> str:
    cure = f" ({finding.cure})" if finding.cure else ""
    return f"{finding.path}: {finding.message}{cure}" if finding.path else f"{finding.message}{cure}"


def refusal(path: str, message: str, cure: str = "", code: str = "C101") -> Finding:
    """An error about one field."""
    return Finding(Severity.ERROR, message, cure or None, path=path, code=code)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the learners run in.

    `image` "" = plain processes. `controller` is the argv that starts the controller, interpreter included;
    an isolated plain process needs it. `network` is the level that was chosen. `devices`: nodes add options for theirs.
    `staging` starts the staging program on the nodes (empty = they cannot), and `cache` is theirs. `images` is the
    directory of the user's private images where they have none. `pod`: each learner runs in a container of its own
    beside its controller, which `controller` starts; placeholders may be in it. `mounting` is the site's word about
    mounts. `host_values`: which of Slurm's variables the nodes themselves have, and under which name.
    """

    image: str = ""
    program: str = "apptainer"
    gpus: GpuLibraries = GpuLibraries.NONE
    devices: bool = False
    controller: tuple[str, ...] = ()
    network: NetworkLevel = NetworkLevel.HOST
    staging: tuple[str, ...] = ()
    cache: NodeCache | None = None
    images: str = ""
    pod: bool = False
    mounting: Mounting = Mounting.NEVER
    host_values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """The parts of a launch file that follow from specification and runtime. `checkpoints` is $CHECKPOINT_DIR on the
    host, `pod_mounts` are what the learner's container of a pod sees."""

    learner: LearnerCommand
    rendezvous: Rendezvous
    data: Data
    make_dirs: tuple[str, ...]
    checkpoints: str = ""
    staging: tuple[str, ...] = ()
    cache: NodeCache | None = None
    mounts: Mounts | None = None
    pod_mounts: tuple[PodMount, ...] = ()


def compose_start(subject: Subject, runtime: Runtime) -> Start:
    """How each learner is started, and what is copied in and stored out. Raises RequestRefused."""
    _check_paths(subject)
    _check_mpi(subject)
    rendezvous = arrange(subject.job_id, subject.spec, subject.gang, subject.failures)
    if _names_one(runtime) and not rendezvous.names:
        rendezvous = replace(rendezvous, names=name_prefix(subject.job_id))
    learners = _learners(subject, rendezvous)
    data = _place_data(subject, runtime)
    places, cache = data.places, _cache(subject.spec, runtime, data)
    try:
        layout = container_layout(places) if runtime.image else bare_layout(places)
        env = learner_environment(learners, layout)
        env |= environment(subject.spec, subject.gang, rendezvous.ports, layout.job_state_dir)
        env |= _of_slurm(subject, runtime, layout, env)
        image = "{image}" if cache is not None and cache.image else runtime.image
        shell = SLURM_SHELL if subject.spec.batch.slurm_environment else SHELL
        argv = _argv(image, runtime, layout, bool(rendezvous.names), shell)
    except ValueError as error:
        raise RequestRefused([refusal("", str(error))]) from error
    learner = LearnerCommand(
        argv=argv,
        env=env,
        delivery=EnvDelivery.FILE if runtime.image else EnvDelivery.PROCESS,
        protected=(*PROTECTED, *learners.extra, *(name for name in env if name.startswith(f"{DATA_DIR}_"))),
        host_values=runtime.host_values if subject.spec.batch.slurm_environment else {},
    )
    make_dirs = (*layout.make_dirs, *(literal(fetch.local) for fetch in data.fetches))
    staging = runtime.staging if data.fetches or data.uploads or cache else ()
    pod_mounts: tuple[PodMount, ...] = ()
    if runtime.pod:
        count = len(subject.gang.members)
        pod_mounts = tuple(learner_mounts(layout, subject.job.path, subject.attempt, count, bool(rendezvous.names)))
    mounts = plan_mounts(subject, data.fetches, runtime.mounting, cached=runtime.cache is not None)
    host = checkpoints_on_host(places)
    return Start(learner, rendezvous, data, make_dirs, host, staging, cache, mounts, pod_mounts)


def _cache(spec: JobSpec, runtime: Runtime, data: Data) -> NodeCache | None:
    """The nodes' cache, where there is something for it, and a program that fills it; for an image whose registry
    wants credentials one of the user's own, where nodes have none. Raises RequestRefused."""
    image = runtime.image if is_convertible(runtime.image) else ""
    credentials = image_credentials(spec) if image else {}
    if credentials and not runtime.staging:
        place = "framework.image_location.access_token"
        raise RequestRefused([refusal(place, _UNSEEN.format("an image with credentials needs"), _SEEN)], not_yet=True)
    cache = runtime.cache or (NodeCache("", images=runtime.images) if credentials and runtime.images else None)
    if cache is None or not runtime.staging or not (data.fetches or image):
        return None
    return replace(cache, image=image, program=runtime.program, credentials=credentials)


def _names_one(runtime: Runtime) -> bool:
    """Whether a single learner has a name: it has no use for the node's, where the node's network is not its own."""
    return runtime.network in OVERLAYS or (bool(runtime.image) and runtime.network is NetworkLevel.NONE)


def _check_paths(subject: Subject) -> None:
    """Paths go into scripts, files and command lines of many programs; none of those carries a line break."""
    for path in (subject.attempt.path, subject.job.path, subject.results_store):
        if any(ord(c) < 32 or ord(c) == 127 for c in path):
            message = f"the path {path!r} holds a control character"
            raise RequestRefused([refusal("", message, "move the tree of jobs or the results store")])


def _check_mpi(subject: Subject) -> None:
    if takes_for_one(subject.spec, subject.gang):
        message = (
            "mpirun takes learners that share a node for one machine and starts all their processes in the first of "
            "them, which sees its own GPUs alone"
        )
        raise RequestRefused([refusal("learners", message, "ask for one learner on each node, with more GPUs")])


_MODES = {
    NetworkLevel.NONE: NetworkMode.LOOPBACK,
    NetworkLevel.JOB: NetworkMode.JOIN,
    NetworkLevel.EGRESS: NetworkMode.JOIN,
}


def _of_slurm(subject: Subject, runtime: Runtime, layout: Layout, env: Mapping[str, str]) -> dict[str, str]:
    """Slurm's variables, where the manifest wants them, beside those of `env`, which are more to the point."""
    if not subject.spec.batch.slurm_environment:
        return {}
    contained = bool(runtime.image)
    found = slurm_variables(subject.job_id, subject.spec, subject.gang, layout, contained, subject.apart)
    return {name: text for name, text in found.items() if name not in env}


def _argv(image: str, runtime: Runtime, layout: Layout, named: bool, shell: tuple[str, ...]) -> tuple[str, ...]:
    """`image` is the container's, or stands for it; `named`: the learners have names, which resolve."""
    if runtime.pod:
        return stand_in_argv(runtime.controller, shell)
    return _contained(image, runtime, layout, named, shell) if image else _bare(runtime, shell)


def _contained(image: str, runtime: Runtime, layout: Layout, named: bool, shell: tuple[str, ...]) -> tuple[str, ...]:
    mode = _MODES.get(runtime.network, NetworkMode.HOST)
    container = Container(image, layout.binds, mode, runtime.gpus, runtime.devices, runtime.program, argv=shell)
    if named:
        hosts = Bind("{hosts_file}", "/etc/hosts", read_only=True)
        container = replace(container, binds=(*layout.binds, hosts), hostname="{name}")
    return apptainer_argv(container)


def _bare(runtime: Runtime, shell: tuple[str, ...]) -> tuple[str, ...]:
    return isolated_argv(runtime.controller, shell) if runtime.network is NetworkLevel.NONE else bare_argv(shell)


def _learners(subject: Subject, rendezvous: Rendezvous) -> Learners:
    spec = subject.spec
    gpus = {part.gpus for part in parts_of(spec)}
    return Learners(
        training_id=subject.job_id,
        command="" if rendezvous.commands else rendezvous.command,
        learners=len(subject.gang.members),
        gpus=gpus.pop() if len(gpus) == 1 else None,
        extra=element_environment(spec.element) if spec.element is not None else {},
    )


# ---------------------------------------------------------------------------------------------- data stores


def _place_data(subject: Subject, runtime: Runtime) -> Data:
    try:
        found = place_data(subject)
    except StoreRefused as error:
        raise RequestRefused([refusal(error.path, error.message, error.cure, "C103")]) from error
    if (found.fetches or found.uploads) and not runtime.staging:
        message = _UNSEEN.format("data stores that are no directories need")
        raise RequestRefused([refusal("data_stores", message, _SEEN)], not_yet=True)
    return found


# -------------------------------------------------------------------------------------------------- network


def choose_network(
    spec: JobSpec,
    provable: Mapping[NetworkLevel, str],
    minimum: NetworkLevel = NetworkLevel.HOST,
    lacking: Mapping[NetworkLevel, Finding] = MappingProxyType({}),
) -> Network:
    """The level that this job gets; `provable` maps each level that the backend proves to its mechanism, `lacking` says
    why it does not prove another.

    AUTO is the tightest provable level that the job can work with: several learners have to reach each other. A
    named level is that level or a refusal, never a looser one.
    """
    asked = spec.batch.network
    fitting = NetworkLevel.NONE if spec.resources.learners == 1 else NetworkLevel.JOB
    level = asked
    if asked is NetworkLevel.AUTO:
        level = fitting if fitting in provable else NetworkLevel.HOST
    if level not in provable:
        message = f"network level {level} cannot be proved on this backend; a named level is never loosened"
        raise RequestRefused([lacking.get(level) or refusal("batch.network", message, "use network: auto or host")])
    if minimum in _TIGHTNESS and _TIGHTNESS.index(level) > _TIGHTNESS.index(minimum):
        message = f"the site asks for network level {minimum} or tighter, and this job would get {level}"
        if asked is NetworkLevel.AUTO and fitting in lacking:
            message += f": {lacking[fitting].message}"
        raise RequestRefused([refusal("batch.network", message, _tighter(spec, fitting, minimum))])
    return Network(requested=asked.value, level=level.value, mechanism=provable[level])


def _tighter(spec: JobSpec, fitting: NetworkLevel, minimum: NetworkLevel) -> str:
    """What the owner of a job can do about a level that the site does not allow."""
    if spec.batch.network is not NetworkLevel.AUTO and _TIGHTNESS.index(fitting) <= _TIGHTNESS.index(minimum):
        return f"leave network out, or write network: {fitting}"
    return "ask for one learner, or talk to the site" if spec.resources.learners > 1 else "talk to the site"


def refuse_unsupported(spec: JobSpec) -> None:
    """Raise RequestRefused for a whole array, for mistakes that no backend can make a job of, and (not yet) for
    everything of `batch:` that no backend of this release offers, and that a job cannot do without."""
    batch = spec.batch
    if is_array(spec):
        raise RequestRefused([refusal("batch.array", "an array is planned by its elements, each a job of its own")])
    mistakes = [refusal(one.path, one.message, one.cure) for one in find_mistakes(spec)]
    if mistakes:
        raise RequestRefused(mistakes)
    asked = {"batch.elastic": bool(batch.elastic)}
    findings = [refusal(path, f"{path} is not offered yet; leave it out") for path, there in asked.items() if there]
    if findings:
        raise RequestRefused(findings, not_yet=True)


# ----------------------------------------------------------------------------------------------- controller

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from ffdl_batch.controller.__main__ import main; sys.exit(main())"
)


@lru_cache(maxsize=1)
def release() -> str:
    """This release's version, for launch files. (The top package offers it too, and the client with it.)"""
    return version("ffdl-batch")


def controller_arguments(path: str) -> tuple[str, ...]:
    """What follows the interpreter to start the controller at `path`: a zipapp, or the directory of the package.

    Isolated and without site packages: the controller needs the standard library only, and starts in 10 ms.
    """
    return ("-I", "-S", path) if path.endswith(".pyz") else ("-I", "-S", "-c", _START, path)


def staging_arguments(python: str) -> tuple[str, ...]:
    """What starts the staging program with the interpreter of an installation."""
    return (python, "-I", "-m", "ffdl_batch.staging")

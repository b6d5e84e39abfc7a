"""Plan how the learners of a job are started: data, directories, argv, environment, network. Pure.

All backends use it, so a manifest means the same on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from types import MappingProxyType

from ffdl_batch.domain.data.image_task import is_convertible
from ffdl_batch.domain.data.mounts import Mounting, Mounts
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.array import element_environment, is_array
from ffdl_batch.domain.job.data_stores import StoreRefused
from ffdl_batch.domain.job.elastic import elastic_environment
from ffdl_batch.domain.job.learner_layout import parts_of, takes_for_one
from ffdl_batch.domain.job.secret_references import image_credentials
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.job.spec_errors import find_mistakes
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LearnerCommand, Network, NodeCache
from ffdl_batch.domain.launch.network_level import OVERLAYS, NetworkLevel
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.apptainer import Container, GpuLibraries, NetworkMode, apptainer_argv
from ffdl_batch.runtimes.data import Data, place_data, plan_mounts
from ffdl_batch.runtimes.data import Subject as Subject  # noqa: PLC0414 - offered to modules that plan a start
from ffdl_batch.runtimes.enroot import enroot_argv
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
from ffdl_batch.runtimes.pod import PodMount, learner_mounts, stand_in_argv
from ffdl_batch.runtimes.rendezvous import Rendezvous, arrange, environment, name_prefix
from ffdl_batch.runtimes.slurm_environment import SLURM_SHELL, slurm_variables

_UNSEEN = "the nodes do not see this installation, which {} there"
_SEEN = "put it on a file system that nodes share, or name an interpreter in staging_python"
_TIGHTNESS = (NetworkLevel.NONE, NetworkLevel.JOB, NetworkLevel.EGRESS, NetworkLevel.HOST)


class RequestRefused(InvalidRequest):
    """The specification cannot be planned; each finding names a field."""

    def __init__(self, findings: Collection[Finding]) -> None:
        super().__init__("; ".join(_sentence(finding) for finding in findings), tuple(findings))


def _sentence(finding: Finding) -> str:
    cure = f" ({finding.cure})" if finding.cure else ""
    return f"{finding.path}: {finding.message}{cure}" if finding.path else f"{finding.message}{cure}"


def refusal(path: str, message: str, cure: str = "", code: str = "C101") -> Finding:
    """An error about one field."""
    return Finding(Severity.ERROR, message, cure or None, path=path, code=code)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the learners run in."""

    image: str = ""
    """"" = the learners are plain processes."""
    program: str = "apptainer"
    gpus: GpuLibraries = GpuLibraries.NONE
    devices: bool = False
    """Whether the nodes add options for their devices."""
    controller: tuple[str, ...] = ()
    """The argv that starts the controller, with the interpreter, for pods and isolated plain processes. It may have
    placeholders."""
    network: NetworkLevel = NetworkLevel.HOST
    staging: tuple[str, ...] = ()
    """The argv that starts the staging program on the nodes; empty = they do not have it."""
    cache: NodeCache | None = None
    images: str = ""
    """The directory of the user's private images, for nodes without a cache."""
    pod: bool = False
    """Whether each learner runs in a container of its own, beside its controller."""
    mounting: Mounting = Mounting.NEVER
    """The site's setting; the manifest's wins."""
    host_values: Mapping[str, str] = field(default_factory=dict)
    """Variables of Slurm that the nodes have, and the names under which they have them."""
    enroot: bool = False
    """Whether enroot starts the containers, instead of Apptainer."""


@dataclass(frozen=True, slots=True)
class Start:
    """The parts of a launch file that follow from the specification and the runtime."""

    learner: LearnerCommand
    rendezvous: Rendezvous
    data: Data
    make_dirs: tuple[str, ...]
    checkpoints: str = ""
    """$CHECKPOINT_DIR on the host."""
    staging: tuple[str, ...] = ()
    cache: NodeCache | None = None
    mounts: Mounts | None = None
    pod_mounts: tuple[PodMount, ...] = ()
    """The volumes of the learner's container in a pod."""


def compose_start(subject: Subject, runtime: Runtime) -> Start:
    """Plan the start of each learner, and which data are copied in and out. Raises RequestRefused."""
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
    """Return the nodes' cache if the job has data or an image for it and the nodes have the program that fills it.

    Nodes without a cache get the user's directory of private images if the image's registry needs credentials.
    Raises RequestRefused.
    """
    image = runtime.image if is_convertible(runtime.image) else ""
    credentials = image_credentials(spec) if image else {}
    if runtime.enroot:
        if credentials:
            place = "framework.image_location.access_token"
            cure = "write them to ~/.config/enroot/.credentials, which enroot reads"
            raise RequestRefused([refusal(place, "enroot cannot use credentials from a manifest", cure)])
        image = ""  # enroot caches layers of images by itself, and opens no SIF
    if credentials and not runtime.staging:
        place = "framework.image_location.access_token"
        raise RequestRefused([refusal(place, _UNSEEN.format("an image with credentials needs"), _SEEN)])
    cache = runtime.cache or (NodeCache("", images=runtime.images) if credentials and runtime.images else None)
    if cache is None or not runtime.staging or not (data.fetches or image):
        return None
    return replace(cache, image=image, program=runtime.program, credentials=credentials)


def _names_one(runtime: Runtime) -> bool:
    """Whether a single learner has a name of its own because it is not in the node's network."""
    return runtime.network in OVERLAYS or (bool(runtime.image) and runtime.network is NetworkLevel.NONE)


def _check_paths(subject: Subject) -> None:
    """Refuse control characters in paths: scripts, files and command lines cannot carry a line break."""
    for path in (subject.attempt.path, subject.job.path, subject.results_store):
        if any(ord(c) < 32 or ord(c) == 127 for c in path):
            message = f"the path {path!r} contains a control character"
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
    """Return Slurm's variables if the manifest asks for them, except those in `env`."""
    if not subject.spec.batch.slurm_environment:
        return {}
    contained = bool(runtime.image)
    found = slurm_variables(subject.job_id, subject.spec, subject.gang, layout, contained, subject.apart)
    return {name: text for name, text in found.items() if name not in env}


def _argv(image: str, runtime: Runtime, layout: Layout, named: bool, shell: tuple[str, ...]) -> tuple[str, ...]:
    """Return the learner's argv. `image` is the container's, or its placeholder; `named`: learners' names resolve."""
    if runtime.pod:
        return stand_in_argv(runtime.controller, shell)
    return _contained(image, runtime, layout, named, shell) if image else _bare(runtime, shell)


def _contained(image: str, runtime: Runtime, layout: Layout, named: bool, shell: tuple[str, ...]) -> tuple[str, ...]:
    mode = _MODES.get(runtime.network, NetworkMode.HOST)
    container = Container(image, layout.binds, mode, runtime.gpus, runtime.devices, runtime.program, argv=shell)
    if named:
        hosts = Bind("{hosts_file}", "/etc/hosts", read_only=True)
        container = replace(container, binds=(*layout.binds, hosts), hostname="{name}")
    return enroot_argv(container) if runtime.enroot else apptainer_argv(container)


def _bare(runtime: Runtime, shell: tuple[str, ...]) -> tuple[str, ...]:
    return isolated_argv(runtime.controller, shell) if runtime.network is NetworkLevel.NONE else bare_argv(shell)


def bare_argv(shell: tuple[str, ...] = SHELL) -> tuple[str, ...]:
    """Return the argv of a plain process in the host's network."""
    return tuple(literal(part) for part in shell)


def isolated_argv(controller: tuple[str, ...], shell: tuple[str, ...] = SHELL) -> tuple[str, ...]:
    """Return the argv of a plain process in user and network namespaces of its own, with loopback only.

    `controller` is the argv that starts the controller, with the interpreter. Its ``isolate`` command makes the
    namespaces, drops all capabilities and becomes the learner. It fails if it cannot make them.
    """
    return (*(literal(part) for part in controller), "isolate", "--", *bare_argv(shell))


def _learners(subject: Subject, rendezvous: Rendezvous) -> Learners:
    spec, elasticity = subject.spec, subject.spec.batch.elasticity
    gpus = {part.gpus for part in parts_of(spec)}
    extra = element_environment(spec.element) if spec.element is not None else {}
    if elasticity is not None:
        extra |= elastic_environment(elasticity, len(subject.gang.members), spec.resources.gpus)
    return Learners(
        training_id=subject.job_id,
        command="" if rendezvous.commands else rendezvous.command,
        learners=len(subject.gang.members),
        gpus=gpus.pop() if len(gpus) == 1 else None,
        extra=extra,
    )


# ---------------------------------------------------------------------------------------------- data stores


def _place_data(subject: Subject, runtime: Runtime) -> Data:
    try:
        found = place_data(subject)
    except StoreRefused as error:
        raise RequestRefused([refusal(error.path, error.message, error.cure, "C103")]) from error
    if (found.fetches or found.uploads) and not runtime.staging:
        message = _UNSEEN.format("data stores that are not directories need")
        raise RequestRefused([refusal("data_stores", message, _SEEN)])
    return found


# -------------------------------------------------------------------------------------------------- network


def choose_network(
    spec: JobSpec,
    provable: Mapping[NetworkLevel, str],
    minimum: NetworkLevel = NetworkLevel.HOST,
    lacking: Mapping[NetworkLevel, Finding] = MappingProxyType({}),
) -> Network:
    """Return the network level of the job. Raises RequestRefused.

    `provable` maps each level that the backend proves to its mechanism; `lacking` has the reason why it does not prove
    another level. AUTO is the tightest provable level that the job can work with: several learners must reach each
    other. A level that the manifest names is never loosened.
    """
    asked = spec.batch.network
    fitting = NetworkLevel.NONE if spec.resources.learners == 1 else NetworkLevel.JOB
    level = asked
    if asked is NetworkLevel.AUTO:
        level = fitting if fitting in provable else NetworkLevel.HOST
    if level not in provable:
        message = f"network level {level} cannot be proved on this backend; a named level is never loosened"
        raise RequestRefused([lacking.get(level) or refusal("batch.network", message, "use network: auto or host")])
    permitted = _TIGHTNESS[: _TIGHTNESS.index(minimum) + 1] if minimum in _TIGHTNESS else _TIGHTNESS
    if level not in permitted:
        message = f"the site asks for network level {minimum} or tighter, and this job would get {level}"
        if asked is NetworkLevel.AUTO and fitting in lacking:
            message += f": {lacking[fitting].message}"
        raise RequestRefused([refusal("batch.network", message, _tighter(spec, fitting, minimum))])
    outward = (NetworkLevel.EGRESS, NetworkLevel.HOST)
    offered = tuple(one.value for one in outward if one in provable and one in permitted)
    return Network(requested=asked.value, level=level.value, mechanism=provable[level], offered=offered)


def _tighter(spec: JobSpec, fitting: NetworkLevel, minimum: NetworkLevel) -> str:
    """Return what the owner of a job can do about a level that the site does not allow."""
    if spec.batch.network is not NetworkLevel.AUTO and _TIGHTNESS.index(fitting) <= _TIGHTNESS.index(minimum):
        return f"leave network out, or write network: {fitting}"
    return "ask for one learner, or talk to the site" if spec.resources.learners > 1 else "talk to the site"


def refuse_unsupported(spec: JobSpec) -> None:
    """Raise RequestRefused for a whole array, and for mistakes."""
    if is_array(spec):
        raise RequestRefused([refusal("batch.array", "an array is planned by its elements, each a job of its own")])
    mistakes = [refusal(one.path, one.message, one.cure) for one in find_mistakes(spec)]
    if mistakes:
        raise RequestRefused(mistakes)


# ----------------------------------------------------------------------------------------------- controller

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from ffdl_batch.controller.__main__ import main; sys.exit(main())"
)


def controller_arguments(path: str) -> tuple[str, ...]:
    """Return the arguments of the interpreter that start the controller at `path`: a zipapp, or the directory of the
    package.

    Isolated and without site packages: the controller needs the standard library only, and starts in 10 ms.
    """
    return ("-I", "-S", path) if path.endswith(".pyz") else ("-I", "-S", "-c", _START, path)


def staging_arguments(python: str) -> tuple[str, ...]:
    """Return the argv that starts the staging program with the interpreter of an installation."""
    return (python, "-I", "-m", "ffdl_batch.staging")

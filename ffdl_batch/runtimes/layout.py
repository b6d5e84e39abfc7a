"""From a job's specification to what its learners are started with: data, directories, argv, environment, network.

Every adapter that starts learners itself (Slurm, this machine) asks here, so that a manifest means the same on
all of them. Pure; refusals are :class:`RequestRefused`, which adapters hand on as their port's errors.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from types import MappingProxyType

from ffdl_batch.domain.array import element_environment, is_array
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.gang import Gang, parts_of, takes_for_one
from ffdl_batch.domain.jobdir import AttemptDir, JobDir
from ffdl_batch.domain.launch import Copy, EnvDelivery, LearnerCommand, Network, Stores
from ffdl_batch.domain.mistakes import find_mistakes
from ffdl_batch.domain.network_level import OVERLAYS, NetworkLevel
from ffdl_batch.domain.spec import DataStore, JobSpec, StoreType
from ffdl_batch.runtimes.apptainer import Container, GpuLibraries, NetworkMode, apptainer_argv
from ffdl_batch.runtimes.bare import bare_argv, isolated_argv
from ffdl_batch.runtimes.contract import (
    PROTECTED,
    Bind,
    Layout,
    Learners,
    Places,
    bare_layout,
    checkpoints_on_host,
    container_layout,
    learner_environment,
)
from ffdl_batch.runtimes.rendezvous import Rendezvous, arrange, environment, name_prefix

MODEL_STORE = os.path.join("_submitted_code", "model.zip")  # noqa: PTH118 - a name, nothing is touched
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
class Subject:
    """The attempt that is planned. `failures`: how many failed attempts its chain may have."""

    job_id: str
    spec: JobSpec
    gang: Gang
    job: JobDir
    attempt: AttemptDir
    results_store: str = ""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the learners run in.

    `image` "" = plain processes. `controller` is the argv that starts the controller, interpreter included;
    an isolated plain process needs it. `network` is the level that was chosen. `devices`: nodes add options for theirs.
    """

    image: str = ""
    program: str = "apptainer"
    gpus: GpuLibraries = GpuLibraries.NONE
    devices: bool = False
    controller: tuple[str, ...] = ()
    network: NetworkLevel = NetworkLevel.HOST


@dataclass(frozen=True, slots=True)
class Start:
    """The parts of a launch file that follow from specification and runtime. `checkpoints` is $CHECKPOINT_DIR on the
    host."""

    learner: LearnerCommand
    rendezvous: Rendezvous
    copies: tuple[Copy, ...]
    stores: Stores
    make_dirs: tuple[str, ...]
    needs_dirs: tuple[str, ...] = ()
    checkpoints: str = ""
    warnings: tuple[str, ...] = ()


def compose_start(subject: Subject, runtime: Runtime) -> Start:
    """How each learner is started, and what is copied in and stored out. Raises RequestRefused."""
    _check_paths(subject)
    _check_mpi(subject)
    rendezvous = arrange(subject.job_id, subject.spec, subject.gang, subject.failures)
    if _names_one(runtime) and not rendezvous.names:
        rendezvous = replace(rendezvous, names=name_prefix(subject.job_id))
    learners = _learners(subject, rendezvous)
    places, copies, stores, warnings = _place_data(subject)
    try:
        layout = container_layout(places) if runtime.image else bare_layout(places)
        env = learner_environment(learners, layout)
        env |= environment(subject.spec, subject.gang, rendezvous.ports, layout.job_state_dir)
        argv = _contained(runtime, layout, bool(rendezvous.names)) if runtime.image else _bare(runtime)
    except ValueError as error:
        raise RequestRefused([refusal("", str(error))]) from error
    learner = LearnerCommand(
        argv=argv,
        env=env,
        delivery=EnvDelivery.FILE if runtime.image else EnvDelivery.PROCESS,
        protected=(*PROTECTED, *learners.extra),
    )
    needs_dirs = (places.data,) if places.data else ()
    return Start(
        learner, rendezvous, copies, stores, layout.make_dirs, needs_dirs, checkpoints_on_host(places), warnings
    )  # fmt: skip


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


def _contained(runtime: Runtime, layout: Layout, named: bool) -> tuple[str, ...]:
    """`named`: the learners have names, which resolve."""
    mode = _MODES.get(runtime.network, NetworkMode.HOST)
    container = Container(runtime.image, layout.binds, mode, runtime.gpus, runtime.devices, runtime.program)
    if named:
        hosts = Bind("{hosts_file}", "/etc/hosts", read_only=True)
        container = replace(container, binds=(*layout.binds, hosts), hostname="{name}")
    return apptainer_argv(container)


def _bare(runtime: Runtime) -> tuple[str, ...]:
    return isolated_argv(runtime.controller) if runtime.network is NetworkLevel.NONE else bare_argv()


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


def _place_data(subject: Subject) -> tuple[Places, tuple[Copy, ...], Stores, tuple[str, ...]]:
    stores = subject.spec.data_stores
    if len(stores) > 1:
        message = "more than one data store is not offered yet; put the input under one directory"
        raise RequestRefused([refusal("data_stores[1]", message)], not_yet=True)
    store = stores[0] if stores else None
    base = _store_path(store, subject.spec.base_dir) if store else ""
    places = Places(
        job=subject.job,
        attempt=subject.attempt,
        training_id=subject.job_id,
        data_container=store.training_data if store else "",
        results_container=store.training_results if store else "",
        data=_below(base, store.training_data) if store and base and not store.is_copied else "",
        results_bucket=_below(base, store.training_results) if store and base and store.training_results else "",
        copied=store is not None and store.is_copied,
        shared_checkpoints=subject.spec.batch.checkpoint.shared,
    )
    copies: tuple[Copy, ...] = ()
    if store and store.is_copied and store.training_data:
        copies = (Copy(_below(base, store.training_data), subject.attempt.data),)
    kept = subject.results_store
    if not kept and places.results_bucket:
        kept = _below(places.results_bucket, subject.job_id)
    out = Stores(results=kept, logs=kept, model=_below(kept, MODEL_STORE)) if kept else Stores()
    warnings: tuple[str, ...] = ()
    if store and not base:
        warnings = (f"data_stores[0]: {store.type} without connection.path mounts nothing, as in FfDL",)
    return places, copies, out, warnings


def _store_path(store: DataStore, base_dir: str) -> str:
    kind = store.effective_type
    if kind not in (StoreType.HOST_MOUNT, StoreType.DIRECTORY, StoreType.MOUNT_VOLUME):
        message = f"data stores of type {kind} are not offered yet; this release reads host_mount and directory"
        raise RequestRefused([refusal("data_stores[0].type", message)], not_yet=True)
    path = store.connection.get("path", "")
    if not path and kind is StoreType.MOUNT_VOLUME:
        return ""
    if not path:
        message = f"a data store of type {kind} needs connection.path, the directory that holds the data"
        raise RequestRefused([refusal("data_stores[0].connection.path", message, code="C103")])
    full = os.path.normpath(os.path.join(base_dir or "/", path))  # noqa: PTH118 - pure, nothing is touched
    mode = store.connection.get("mode", "mount")
    if mode not in ("mount", "copy"):
        message = f"{mode!r} is no mode of a data store; choose mount or copy"
        raise RequestRefused([refusal("data_stores[0].connection.mode", message, code="C103")])
    return full


def _below(base: str, name: str) -> str:
    """`name` inside `base`; a name that leads out of it is refused."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        message = f"{name!r} leads out of the data store; use a plain directory name"
        raise RequestRefused([refusal("data_stores[0]", message, code="C103")])
    return os.path.join(base, *parts)  # noqa: PTH118 - pure, nothing is touched


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


def refuse_unsupported(spec: JobSpec, attempt: int = 1) -> None:
    """Raise RequestRefused for a whole array, for mistakes that no backend can make a job of, and (not yet) for
    everything of `batch:` that no backend of this release offers, and that a job cannot do without. Releases before
    this one took jobs with secrets; their later attempts are what the first one was."""
    batch = spec.batch
    if is_array(spec):
        raise RequestRefused([refusal("batch.array", "an array is planned by its elements, each a job of its own")])
    mistakes = [refusal(one.path, one.message, one.cure) for one in find_mistakes(spec)]
    if mistakes:
        raise RequestRefused(mistakes)
    asked = {
        "batch.elastic": bool(batch.elastic),
        "batch.notify.webhook": bool(batch.notify.webhook),
    }
    findings = [refusal(path, f"{path} is not offered yet; leave it out") for path, there in asked.items() if there]
    if batch.secrets and attempt == 1:
        message = f"batch.secrets is not offered yet: no learner would get {', '.join(batch.secrets)}"
        findings.append(refusal("batch.secrets", message, "have the training read the values from a file of yours"))
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

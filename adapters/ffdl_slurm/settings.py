"""Read the settings of ``[backend.slurm]``, once when the adapter is created."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import TypeVar

from ffdl_batch.domain.harmless_settings import HARMLESS, harmless_keys
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.launch.devices import AMD, INTEL, NVIDIA, VENDORS
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.domain.toml_text import toml_text
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import unknown_setting
from ffdl_batch.runtimes.enroot import PROGRAM

E = TypeVar("E", bound=StrEnum)


class GatewayKind(StrEnum):
    """How requests are sent to Slurm."""

    CLI = "cli"
    PYSLURM = "pyslurm"


class ContainerRuntime(StrEnum):
    """The program that starts the containers of learners."""

    APPTAINER = "apptainer"
    PYXIS = "pyxis"
    """Enroot, which is installed on nodes with Pyxis."""


class GpuFlag(StrEnum):
    """Which of Apptainer's GPU options learners with GPUs get; AUTO decides on the node."""

    NONE = "none"
    NV = "nv"
    ROCM = "rocm"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """The settings of a site's Slurm."""

    gateway: GatewayKind = GatewayKind.CLI
    credential_life_s: float = 300.0
    """Seconds within which a request that was sent may still be accepted (MUNGE: 300 s, auth/slurm: 60 s)."""
    command_timeout_s: float = 60.0
    python: str = ""
    """The interpreter on the nodes; "" = found by the probe."""
    staging_python: str = ""
    """The interpreter of an installation of this package on the nodes, for data stores that are not directories; "" =
    this one."""
    runtime: ContainerRuntime = ContainerRuntime.APPTAINER
    apptainer: str = "apptainer"
    gpu_flag: GpuFlag = field(default=GpuFlag.AUTO, metadata=HARMLESS)
    partition: str = field(default="", metadata=HARMLESS)
    """Partition, account and QOS of jobs that name none."""
    account: str = field(default="", metadata=HARMLESS)
    qos: str = field(default="", metadata=HARMLESS)
    scratch_base: str = "/tmp"  # noqa: S108 - the directory that is made in it is 0700
    """A directory on each node's own disk."""
    srun_args: tuple[str, ...] = ()
    """Further options of the job step."""
    submit_host: str = ""
    """Only for messages."""
    fence_s: float = 120.0
    """A node that cannot read the attempt's files for this time ends its learners. It should be less than slurm.conf's
    SlurmdTimeout, after which Slurm declares a silent node down and starts the job elsewhere. There the job waits for
    the rest of `fence_s`."""
    kill_wait_s: int = 30
    """slurm.conf's KillWait: the seconds between TERM and KILL."""
    continue_in_place: bool = field(default=False, metadata=HARMLESS)
    """Whether a job at its time limit is requeued under its id. Otherwise a new job follows it."""
    network_feature: str = "ffdl-network"
    """The feature of nodes whose prolog makes networks of jobs; "" = no job asks for one."""
    egress_feature: str = "ffdl-egress"
    """The feature of nodes whose prolog makes networks with destinations outside; "" = no job asks for one."""
    network_dir: str = "/run/ffdl"
    """FFDL_RUN of slurm-configs."""
    job_mark: str = "ffdl-batch:"
    """JOB_MARK of slurm-configs."""
    gpu_devices: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: GPU_DEVICES)
    """Patterns of the nodes' device files of GPUs by vendor. What learners may open is compared with the allocation
    before they start."""
    gres_devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The same, by the name of another generic resource."""

    @property
    def container_program(self) -> str:
        """The program on the nodes that starts containers."""
        return PROGRAM if self.runtime is ContainerRuntime.PYXIS else self.apptainer


HARMLESS_KEYS = harmless_keys(SlurmSettings)
"""See :func:`ffdl_batch.plugins.harmless_settings`."""
GPU_DEVICES: Mapping[str, tuple[str, ...]] = {
    NVIDIA: ("/dev/nvidia[0-9]*",),
    AMD: ("/dev/kfd", "/dev/dri/renderD*"),
    INTEL: ("/dev/dri/renderD*",),
}
_TABLE = "[backend.slurm]"


def with_defaults(batch: BatchOptions, settings: SlurmSettings) -> BatchOptions:
    """Return `batch` with the partition, account and QOS of the site if it names none."""
    return replace(
        batch,
        partition=batch.partition or settings.partition,
        account=batch.account or settings.account,
        qos=batch.qos or settings.qos,
    )


def read_settings(raw: Mapping[str, object]) -> SlurmSettings:
    """Check and type the table. Raises InvalidRequest that names the key, what is wrong and what would be right."""
    known = {field.name for field in dataclasses.fields(SlurmSettings)}
    unknown = sorted(set(raw) - known)
    if unknown:
        raise unknown_setting(_TABLE, unknown[0], known)
    default = SlurmSettings()
    scratch = _text(raw, "scratch_base", default.scratch_base)
    if not os.path.isabs(scratch):  # noqa: PTH117 - a path on the nodes, not here
        raise InvalidRequest(f"{_TABLE}: scratch_base is {toml_text(scratch)}; an absolute path on the nodes is needed")
    network_dir = _text(raw, "network_dir", default.network_dir)
    if not os.path.isabs(network_dir):  # noqa: PTH117 - likewise
        raise InvalidRequest(
            f"{_TABLE}: network_dir is {toml_text(network_dir)}; an absolute path on the nodes is needed"
        )
    return SlurmSettings(
        gateway=_choice(raw, "gateway", GatewayKind, default.gateway),
        credential_life_s=_seconds(raw, "credential_life_s", default.credential_life_s),
        command_timeout_s=_seconds(raw, "command_timeout_s", default.command_timeout_s),
        python=_text(raw, "python", default.python),
        staging_python=_text(raw, "staging_python", default.staging_python),
        runtime=_choice(raw, "runtime", ContainerRuntime, default.runtime),
        apptainer=_text(raw, "apptainer", default.apptainer) or default.apptainer,
        gpu_flag=_choice(raw, "gpu_flag", GpuFlag, default.gpu_flag),
        partition=_text(raw, "partition", default.partition),
        account=_text(raw, "account", default.account),
        qos=_text(raw, "qos", default.qos),
        scratch_base=scratch,
        srun_args=_texts(raw, "srun_args"),
        submit_host=_text(raw, "submit_host", default.submit_host),
        fence_s=_seconds(raw, "fence_s", default.fence_s),
        kill_wait_s=_whole_seconds(raw, "kill_wait_s", default.kill_wait_s),
        continue_in_place=_flag(raw, "continue_in_place", default.continue_in_place),
        network_feature=_text(raw, "network_feature", default.network_feature),
        egress_feature=_text(raw, "egress_feature", default.egress_feature),
        network_dir=network_dir,
        job_mark=_mark(raw, default.job_mark),
        gpu_devices=_patterns(raw, "gpu_devices", default.gpu_devices, VENDORS),
        gres_devices=_patterns(raw, "gres_devices", default.gres_devices),
    )


def doubt_times(settings: SlurmSettings, slurmd_timeout_s: int | None, kill_wait_s: int | None) -> list[str]:
    """Return conflicts of the settings with slurm.conf's SlurmdTimeout and KillWait, and their effects. Pure.

    With SlurmdTimeout 0, Slurm never declares a node down (slurm.conf(5)).
    """
    doubts = []
    if slurmd_timeout_s and slurmd_timeout_s <= settings.fence_s:
        doubts.append(
            f"slurm.conf's SlurmdTimeout ({slurmd_timeout_s} s) is not larger than fence_s of {_TABLE} "
            f"({settings.fence_s:g} s): nothing runs twice, but a job whose node was cut off holds its next nodes idle "
            "until fence_s is over"
        )
    if kill_wait_s is not None and kill_wait_s < settings.kill_wait_s:
        doubts.append(
            f"slurm.conf's KillWait ({kill_wait_s} s) is smaller than kill_wait_s of {_TABLE} ({settings.kill_wait_s} "
            "s): learners that are preempted without a warning are killed before their time for a checkpoint is over"
        )
    return doubts


def _text(raw: Mapping[str, object], key: str, default: str) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or "\n" in value or "\0" in value:
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; a text of one line is needed")
    return value


def _mark(raw: Mapping[str, object], default: str) -> str:
    value = _text(raw, "job_mark", default)
    if not value or any(c.isspace() for c in value):
        raise InvalidRequest(
            f"{_TABLE}: job_mark is {toml_text(value)}; JOB_MARK of the nodes' values is needed, without blanks"
        )
    return value


def _texts(raw: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = raw.get(key, [])
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(f'{_TABLE}: {key} is {toml_text(value)}; a list of texts is needed, as ["--mpi=none"]')
    return tuple(str(item) for item in value)


def _seconds(raw: Mapping[str, object], key: str, default: float) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; a number of seconds above zero is needed")
    return float(value)


def _whole_seconds(raw: Mapping[str, object], key: str, default: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; a whole number of seconds above zero is needed")
    return value


def _patterns(
    raw: Mapping[str, object], key: str, default: Mapping[str, tuple[str, ...]], names: Collection[str] = ()
) -> Mapping[str, tuple[str, ...]]:
    """Return a table of lists of absolute patterns."""
    value = raw.get(key, default)
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f'{_TABLE}: {key} is {toml_text(value)}; a table is needed, as {{nvidia = ["/dev/nvidia[0-9]*"]}}'
        )
    for name in value:
        if names and name not in names:
            raise InvalidRequest(f"{_TABLE}: {key} has {name!r}; known are {', '.join(names)}")
        if not all(pattern.startswith("/") for pattern in _texts(value, name)):
            raise InvalidRequest(f"{_TABLE}: {key}.{name} is {toml_text(value[name])}; absolute patterns are needed")
    return {str(name): _texts(value, name) for name in value}


def _flag(raw: Mapping[str, object], key: str, default: bool) -> bool:
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; true or false is needed")
    return value


def _choice(raw: Mapping[str, object], key: str, kind: type[E], default: E) -> E:
    value = raw.get(key, default.value)
    try:
        return kind(value) if isinstance(value, str) else kind("")
    except ValueError:
        choices = ", ".join(member.value for member in kind)
        raise InvalidRequest(f"{_TABLE}: {key} is {toml_text(value)}; choose one of {choices}") from None

"""What a user asked for, checked and typed: the manifest and the command line after parsing.

A JobSpec is a value. It is written once at submission, stored as JSON (see :mod:`ffdl_batch.domain.codec`)
and never changed; what a resume alters goes beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.launch.network_level import NetworkLevel as NetworkLevel  # noqa: PLC0414 - it belongs to the spec
from ffdl_batch.host.permissions import PRIVATE_UMASK

SITE_DEFAULT = "site default"
"""In `JobSpec.sources`: the manifest and the options say nothing, the site's configuration does."""


class StoreType(StrEnum):
    """FfDL's data store types (manifest `data_stores[].type`), and ours: `directory` for plain directories,
    `gcs_datastore` for Google's store, `http_datastore` for files of web servers, `fsspec_datastore` for others."""

    MOUNT_VOLUME = "mount_volume"
    MOUNT_COS = "mount_cos"
    S3_DATASTORE = "s3_datastore"
    SWIFT_DATASTORE = "swift_datastore"
    INMEM_DATASTORE = "inmem_datastore"
    SOFTLAYER_OBJECTSTORE = "softlayer_objectstore"
    BLUEMIX_OBJECTSTORE = "bluemix_objectstore"
    HOST_MOUNT = "host_mount"
    DIRECTORY = "directory"
    GCS_DATASTORE = "gcs_datastore"
    HTTP_DATASTORE = "http_datastore"
    FSSPEC_DATASTORE = "fsspec_datastore"


class SavedBy(StrEnum):
    """Which learners save a checkpoint of the job."""

    ALL = "all"
    FIRST = "first"
    """The first saves for all."""


class Placement(StrEnum):
    """How learners are laid over nodes."""

    NODE = "node"
    PACK = "pack"
    SPREAD = "spread"


class Staging(StrEnum):
    """When data come from stores."""

    INLINE = "inline"
    """In the training's own allocation."""
    AHEAD = "ahead"
    """In an attempt of their own without GPUs, which the training follows."""


class Restart(StrEnum):
    """What is started again when a training learner fails."""

    JOB = "job"
    """The whole job, by its next attempt, as far as `retry` allows it."""
    LEARNER = "learner"
    """That learner alone, while the others go on."""


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """A private image (dialect of AISphere's command line). `user_name` and `access_token` are references to secrets,
    or ""."""

    registry: str
    namespace: str
    email: str = ""
    user_name: str = ""
    access_token: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """`framework:` of the manifest. For `custom`, `version` is the whole image reference."""

    name: str
    version: str
    command: str
    image_tag: str = ""
    image_location: ImageLocation | None = None


@dataclass(frozen=True, slots=True)
class DataStore:
    """One data store. `connection` holds no secret: those are references (`${secret:name}`) or `***`.

    `effective_type` is what FfDL would act on: `connection.type` where given, else `type`.
    `training_data` and `training_results` are container names (buckets, sub-directories), "" where absent.
    """

    id: str
    type: StoreType
    effective_type: StoreType
    training_data: str = ""
    training_results: str = ""
    connection: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_copied(self) -> bool:
        """Whether data are copied into the job's directory (FfDL: s3_datastore) rather than mounted."""
        if self.effective_type is StoreType.DIRECTORY:
            return self.connection.get("mode", "mount") == "copy"
        return self.effective_type in (StoreType.S3_DATASTORE, StoreType.HTTP_DATASTORE)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """`{type, value}` of a scalar or a time axis in `evaluation_metrics.groups`."""

    type: str
    value: str


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """One group of the regex extractor."""

    regex: str = ""
    meta_time: str = ""
    scalars: Mapping[str, MetricValue] = field(default_factory=dict)
    etimes: Mapping[str, MetricValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationMetrics:
    """`evaluation_metrics:`; carried with the job for the log collectors."""

    type: str = ""
    image_tag: str = ""
    in_: str = ""
    line_lookahead: int = 4
    event_types: tuple[str, ...] = ()
    groups: Mapping[str, MetricGroup] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resources:
    """What each learner gets, and how many learners there are (those of all roles together).

    `cpus` and `gpus` may be fractions; `memory_bytes` and `storage_bytes` are bytes.
    `gres` are further generic resources (`type[:kind]` → count).
    """

    learners: int = 1
    cpus: float = 5.0
    gpus: float = 0.0
    gpu_type: str = ""
    memory_bytes: int = 8 * 1000**3
    storage_bytes: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a learner is asked to checkpoint. Seconds; `signal` without SIG, as USR2. `saved_by`: whose answers confirm
    a checkpoint of the job."""

    signal: str = "USR2"
    grace_s: int = 60
    lead_s: int | None = None
    shared: bool = False
    saved_by: SavedBy = SavedBy.ALL


HANG_S = 1800
"""Seconds without a sign of life after which a learner counts as hung; 0 = never."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often each kind of abnormal end is followed by another attempt; None = the default of
    :class:`ffdl_batch.domain.outcome.continuation.Budget`. `gpu_hours` caps the whole chain."""

    timeouts: int | None = None
    preemptions: int | None = None
    node_failures: int | None = None
    failures: int | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """A named role of a distributed job. None and "" mean what the job has; a `service` waits for ever."""

    learners: int = 1
    cpus: float | None = None
    gpus: float | None = None
    memory_bytes: int | None = None
    command: str = ""
    service: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Who is told of which events; `events` are sbatch's --mail-type words in upper case."""

    mail_user: str = ""
    events: tuple[str, ...] = ()
    webhook: str = ""


@dataclass(frozen=True, slots=True)
class Egress:
    """One destination of network level `egress`."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """`batch:` of the manifest and its equals on the command line (design: flag > manifest > …).

    Empty text and None mean "not asked for". `dependency`, `begin`, `nodelist`, `exclude`, `constraint`,
    `output`, `mail`, `comment` are as sbatch means them; `slurm_args` are further, allow-listed sbatch
    options. `env` holds values for the learner's environment; `secrets` maps a variable to a reference. `mount` None =
    as the site has it. `array` and `sweep` (the variables of each element, a grid already multiplied out) are of the
    whole array; a job never has them. `slurm_environment`: learners find Slurm's variables, srun and scontrol on every
    backend.
    """

    time_s: int | None = None
    profile: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    priority: str = ""
    preemptible: bool | None = None
    placement: Placement = Placement.NODE
    network: NetworkLevel = NetworkLevel.AUTO
    egress: tuple[Egress, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hang_s: int = HANG_S
    retry: Retry = field(default_factory=Retry)
    restart: Restart = Restart.JOB
    staging: Staging = Staging.INLINE
    mount: Mounting | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)
    array: str = ""
    sweep: tuple[Mapping[str, str], ...] = ()
    elastic: Mapping[str, str] = field(default_factory=dict)
    notify: Notify = field(default_factory=Notify)
    slurm_args: tuple[str, ...] = ()
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    nodelist: str = ""
    exclude: str = ""
    dependency: str = ""
    begin: str = ""
    hold: bool = False
    requeue: bool | None = None
    signal: str = ""
    comment: str = ""
    output: str = ""
    slurm_environment: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """Which element of an array a job is.

    `array` is the array's id, `name` its name. `count`, `first`, `last` and `step` are the array's (step 1 unless the
    indexes are evenly spaced wider). `limit` is how many of its elements may run at once (None = all). `values` are the
    variables that the sweep gives to this element.
    """

    array: str
    name: str
    index: int
    count: int
    first: int
    last: int
    step: int = 1
    limit: int | None = None
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job as asked for. `sources` says where each value came from, by dotted path.

    `base_dir` is the directory that relative paths of the manifest start from (where the manifest lies).
    `manifest_text` is the manifest as submitted, credentials replaced by ``***`` ("" where it lies with the array).
    `element` is set for an element of an array.
    """

    name: str
    framework: Framework
    description: str = ""
    version: str = ""
    resources: Resources = field(default_factory=Resources)
    data_stores: tuple[DataStore, ...] = ()
    metrics: EvaluationMetrics = field(default_factory=EvaluationMetrics)
    batch: BatchOptions = field(default_factory=BatchOptions)
    base_dir: str = ""
    umask: int = PRIVATE_UMASK
    """With which learners and stored results create files: the submitter's."""
    gid: int | None = None
    """Group of stored results: the submitter's at submission; None = that of the daemon."""
    manifest_text: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    element: Element | None = None

"""What a user requests, checked and typed: the manifest and the command line after parsing.

A JobSpec is a value. It is written once at submission, stored as JSON (see :mod:`ffdl_batch.domain.codec`) and never
changed; changes by a resume are stored beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.launch.limits import IdleLimit
from ffdl_batch.domain.launch.network_level import NetworkLevel as NetworkLevel  # noqa: PLC0414 - it belongs to the spec
from ffdl_batch.domain.quantity import UNLIMITED_S
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import PRIVATE_UMASK

SITE_DEFAULT = "site default"
"""In `JobSpec.sources`: the value is from the site's configuration, not from the manifest or an option."""


class StoreType(StrEnum):
    """FfDL's types of data stores (manifest `data_stores[].type`), and ours: `directory` for plain directories,
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
    """The first learner saves for all."""


class Placement(StrEnum):
    """How learners are distributed over nodes."""

    NODE = "node"
    PACK = "pack"
    SPREAD = "spread"


class Staging(StrEnum):
    """When data are brought from stores."""

    INLINE = "inline"
    """In the training's own allocation."""
    AHEAD = "ahead"
    """In an attempt of its own without GPUs, before the one that trains."""


class Restart(StrEnum):
    """What is started again when a training learner fails."""

    JOB = "job"
    """The whole job, by its next attempt, if `retry` allows it."""
    LEARNER = "learner"
    """Only that learner, while the others continue."""


@dataclass(frozen=True, slots=True)
class ImageLocation:
    """A private image (dialect of AISphere's command line)."""

    registry: str
    namespace: str
    email: str = ""
    user_name: str = ""
    """Reference to a secret, or ""; so is `access_token`."""
    access_token: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """`framework:` of the manifest."""

    name: str
    version: str
    """For `custom` the whole image reference."""
    command: str
    image_tag: str = ""
    image_location: ImageLocation | None = None


@dataclass(frozen=True, slots=True)
class DataStore:
    """One data store."""

    id: str
    type: StoreType
    effective_type: StoreType
    """The type that FfDL would act on: `connection.type` if it is set, else `type`."""
    training_data: str = ""
    """Name of a container (bucket, sub-directory); "" = none."""
    training_results: str = ""
    """Name of a container (bucket, sub-directory); "" = none."""
    connection: Mapping[str, str] = field(default_factory=dict)
    """Holds no secret: values of secrets are references (`${secret:name}`) or `***`."""

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
    """What each learner gets, and how many learners there are."""

    learners: int = 1
    """Those of all roles together."""
    cpus: float = 5.0
    """May be a fraction; so may `gpus`."""
    gpus: float = 0.0
    gpu_type: str = ""
    memory_bytes: int = 8 * 1000**3
    """WHOLE_NODE = all memory of its node."""
    storage_bytes: int | None = None
    gres: Mapping[str, int] = field(default_factory=dict)
    """Other generic resources: `type[:kind]` → count."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a learner is asked for a checkpoint."""

    signal: str = "USR2"
    """Name without SIG."""
    grace_s: int = 60
    lead_s: int | None = None
    shared: bool = False
    saved_by: SavedBy = SavedBy.ALL
    """Whose answers confirm a checkpoint of the job."""


HANG_S = 1800
IDLE_S = 1800
"""Seconds without a sign of life after which a learner counts as hung; 0 = never."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often each kind of abnormal end is followed by another attempt; None = the default of
    :class:`ffdl_batch.domain.outcome.continuation.Budget`."""

    timeouts: int | None = None
    preemptions: int | None = None
    node_failures: int | None = None
    failures: int | None = None
    gpu_hours: float | None = None
    """Limit for all attempts together."""


@dataclass(frozen=True, slots=True)
class Role:
    """A named role of a distributed job. None and "" = the value of the job."""

    learners: int = 1
    cpus: float | None = None
    gpus: float | None = None
    memory_bytes: int | None = None
    command: str = ""
    service: bool = False
    """Its learners run until the others are done."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Recipients of notices, and the events that cause one."""

    mail_user: str = ""
    events: tuple[str, ...] = ()
    """sbatch's --mail-type words in upper case."""
    webhook: str = ""


@dataclass(frozen=True, slots=True)
class Egress:
    """One destination of network level `egress`."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """`batch:` of the manifest and its equivalents on the command line (an option wins over the manifest).

    Empty text and None mean "not requested". `dependency`, `begin`, `nodelist`, `exclude`, `constraint`, `output`,
    `mail`, `comment` are as sbatch means them.
    """

    time_s: int | None = None
    """None = the site decides; UNLIMITED_S = no limit. What ends at a limit reads :attr:`limit_s`."""
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
    """Variables of the learner's environment."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable → reference to a secret."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hang_s: int = HANG_S
    idle: IdleLimit | None = None
    """`batch.idle`."""
    retry: Retry = field(default_factory=Retry)
    restart: Restart = Restart.JOB
    staging: Staging = Staging.INLINE
    mount: Mounting | None = None
    """None = the site's setting."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    array: str = ""
    """Of the whole array; a job never has it."""
    sweep: tuple[Mapping[str, str], ...] = ()
    """Variables of each element, a grid already multiplied out. Of the whole array; a job never has it."""
    elasticity: Elastic | None = None
    """`batch.elastic`."""
    notify: Notify = field(default_factory=Notify)
    slurm_args: tuple[str, ...] = ()
    """Other sbatch options from the list of allowed ones."""
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    nodelist: str = ""
    exclude: str = ""
    dependency: str = ""
    begin: str = ""
    hold: bool = False
    requeue: bool | None = None
    expedite: bool = False
    """Whether a requeued job starts at once, before other jobs (``--requeue=expedite``)."""
    signal: str = ""
    comment: str = ""
    output: str = ""
    slurm_environment: bool = False
    """Whether learners find Slurm's variables, srun and scontrol on every backend."""

    @property
    def limit_s(self) -> int | None:
        """The time limit in seconds; None if there is none, or if the site decides."""
        return None if self.time_s == UNLIMITED_S else self.time_s


@dataclass(frozen=True, slots=True)
class Element:
    """Which element of an array a job is. `count`, `first`, `last` and `step` describe the indexes of the array."""

    array: str
    """Id of the array."""
    name: str
    """Name of the array."""
    index: int
    count: int
    first: int
    last: int
    step: int = 1
    """1 unless the indexes are evenly spaced by more."""
    limit: int | None = None
    """How many elements may run at once; None = all."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Variables that the sweep sets for this element."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job as requested."""

    name: str
    framework: Framework
    description: str = ""
    version: str = ""
    resources: Resources = field(default_factory=Resources)
    data_stores: tuple[DataStore, ...] = ()
    metrics: EvaluationMetrics = field(default_factory=EvaluationMetrics)
    batch: BatchOptions = field(default_factory=BatchOptions)
    base_dir: str = ""
    """Directory of the manifest; its relative paths start there."""
    umask: int = PRIVATE_UMASK
    """The submitter's umask, with which learners and stored results create files."""
    gid: int | None = None
    """Group of stored results: the submitter's at submission; None = that of the daemon."""
    manifest_text: str = ""
    """The manifest as submitted, credentials replaced by ``***``; "" if it is stored with the array."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each value is from, by dotted path."""
    element: Element | None = None
    """Set for an element of an array."""

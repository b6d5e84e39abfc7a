"""`batch:`, our extension of the manifest, as pydantic models; with FfDL's part it makes :class:`ManifestBlock`."""

from __future__ import annotations

import copy
import re
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.job.elastic import LearningRate
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.domain.job.spec import NetworkLevel, Placement, Restart, SavedBy, Staging
from ffdl_batch.domain.network_address import is_webhook
from ffdl_batch.domain.sbatch.values import EXPEDITE
from ffdl_batch.manifest.models.ffdl import Block, CommandText, FfdlBlock, nothing_is_empty, nothing_is_no_item
from ffdl_batch.manifest.models.sbatch_values import (
    only_events,
    read_array,
    read_begin,
    read_dependency,
    read_gres,
    read_gres_count,
    read_gres_name,
    read_mail_event,
    read_mail_events,
    read_requeue,
    read_signal,
    read_signal_name,
    read_slurm_arg,
    read_slurm_args,
)
from ffdl_batch.manifest.models.scalars import (
    ENV_NAME,
    FLAG_SCHEMA,
    SHARE_SCHEMA,
    Count,
    CountFromZero,
    Cpus,
    Flag,
    GpuHours,
    Gpus,
    Label,
    Memory,
    NeededCount,
    Text,
    TimeLimit,
    Weight,
    any_case,
    one_of,
    read_label,
    read_share,
    refusal,
    shown,
    word_schema,
)
from ffdl_batch.manifest.models.sweep import SCHEMA as SWEEP_SCHEMA

LEVELS = tuple(str(level) for level in NetworkLevel)
SAVED_BY = tuple(str(saver) for saver in SavedBy)
PLACEMENTS = tuple(str(placement) for placement in Placement)
RESTARTS = tuple(str(restart) for restart in Restart)
MOUNTINGS = tuple(mounting.value for mounting in Mounting)
STAGINGS = tuple(str(staging) for staging in Staging)
LEARNING_RATES = tuple(str(rule) for rule in LearningRate)
_ENV_NAME_SCHEMA = {"pattern": f"^{ENV_NAME.pattern}$"}
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_POOL_SCHEMA = f"^({_POOL.pattern})?$"
_DESTINATION = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})", re.ASCII)


def read_destination(value: object) -> str:
    """``host:port`` of an egress rule."""
    text = read_label(value)
    match = _DESTINATION.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise refusal(f"{shown(text)} is not a destination", "write host:port, as data.example.org:443")
    return text


def read_pool(value: object) -> str:
    """Return the name of a pool; "" for null."""
    text = read_label(value)
    if text and not _POOL.fullmatch(text):
        cure = "begin it with a letter or digit; letters, digits, ., _ and - may follow, 64 in all"
        raise refusal(f"{shown(text)} cannot be the name of a pool", cure)
    return text


def read_env_name(value: object) -> str:
    """Read the name of a variable that a learner can be given."""
    name = str(value)
    if not ENV_NAME.fullmatch(name):
        raise refusal(f"{shown(name)} cannot be the name of a variable", "use letters, digits and _")
    refused = why_refused(name)
    if refused:
        what, _, cure = refused.partition("; ")
        raise refusal(what, cure)
    return name


def _level_alone(value: object) -> object:
    return {"level": value} if value is None or isinstance(value, str) else value


def _or_level(schema: dict[str, Any]) -> None:
    """`network: job` beside `network: {level: job}`."""
    alternatives = schema.setdefault("anyOf", [])
    if "$ref" in schema:
        alternatives.append({"$ref": schema.pop("$ref")})
    alternatives.append({"enum": [*LEVELS, None]})


def _webhook(text: str) -> str:
    if text and not is_webhook(text):
        raise refusal(f"{shown(text)} is not a web address", "write https://HOST[:PORT]/PATH")
    return text


Env = Annotated[
    dict[Annotated[str, BeforeValidator(read_env_name)], Text],
    BeforeValidator(nothing_is_empty),
    Field(json_schema_extra={"propertyNames": _ENV_NAME_SCHEMA}),
]
Requeue = Annotated[
    bool | str | None,
    BeforeValidator(read_requeue),
    WithJsonSchema({"anyOf": [FLAG_SCHEMA, {"type": "string", "pattern": f"^{any_case(EXPEDITE)}$"}]}),
]
Words = Annotated[dict[str, Label], BeforeValidator(nothing_is_empty)]
_TEXT = ["string", "number", "null"]
SignalName = Annotated[str, BeforeValidator(read_signal_name), WithJsonSchema({"type": _TEXT})]
Gres = Annotated[
    dict[Annotated[str, BeforeValidator(read_gres_name)], Annotated[int, BeforeValidator(read_gres_count)]],
    BeforeValidator(read_gres),
    WithJsonSchema({"anyOf": [{"type": ["string", "null"]}, {"type": "object"}]}),
]
MailEvents = Annotated[
    tuple[Annotated[str, BeforeValidator(read_mail_event)], ...],
    BeforeValidator(read_mail_events),
    AfterValidator(only_events),
    WithJsonSchema({"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]}),
]
SlurmArgs = Annotated[
    tuple[Annotated[str, BeforeValidator(read_slurm_arg)], ...],
    BeforeValidator(read_slurm_args),
    WithJsonSchema({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string", "pattern": "^--"}}]}),
]
Destinations = Annotated[
    list[Annotated[str, BeforeValidator(read_destination), WithJsonSchema({"type": "string", "pattern": ":[0-9]+$"})]],
    BeforeValidator(nothing_is_no_item),
]


class NetworkBlock(Block):
    """What a learner may reach."""

    level: Annotated[str, BeforeValidator(one_of(LEVELS, "auto")), word_schema(*LEVELS)] = Field(
        "auto", description="none, job, egress, host; auto is the tightest that works and can be proved."
    )
    allow: Destinations = Field([], description="Destinations of level egress, as host:port.")


class CheckpointBlock(Block):
    """How a learner is asked to write a checkpoint."""

    signal: SignalName = Field("", description="Signal that the training handles; USR2.")
    grace_s: CountFromZero = Field(None, description="Seconds that it gets for that; 60.")
    lead_s: CountFromZero = Field(None, description="Seconds before the time limit at which it is asked.")
    shared: Flag = Field(None, description="FfDL's one checkpoint directory for all jobs of the results bucket.")
    saved_by: Annotated[str, BeforeValidator(one_of(SAVED_BY, "all")), word_schema(*SAVED_BY)] = Field(
        "all", description="all: each learner saves its part; first: the first learner saves for all."
    )


class RetryBlock(Block):
    """How many further attempts follow each kind of end."""

    timeouts: CountFromZero = Field(None, description="After the time limit.")
    preemptions: CountFromZero = Field(None, description="After preemption.")
    node_failures: CountFromZero = Field(None, description="After the failure of a node.")
    failures: CountFromZero = Field(None, description="After a learner's own failure.")
    gpu_hours: GpuHours = Field(None, description="GPU-hours of the whole chain, at most; no cap.")


class HealthBlock(Block):
    """When a learner counts as hung."""

    hang_s: CountFromZero = Field(
        None,
        description="Seconds without a sign of life until stacks are recorded and a warning is sent; 1800, 0 = never.",
    )


class IdleBlock(Block):
    """When a job is ended because its GPUs are idle."""

    gpu_below: Annotated[float, BeforeValidator(read_share), WithJsonSchema(SHARE_SCHEMA)] = Field(
        0.05, description="Use of each GPU of a node below which it is idle, in per cent; 5%."
    )
    for_s: TimeLimit = Field(
        None, alias="for", description="How long all GPUs of a node must be idle; 30m. A warning is sent at half of it."
    )


class RoleBlock(Block):
    """One role of a distributed job."""

    learners: Count = Field(None, description="Learners of this role; 1.")
    cpus: Cpus = Field(None, description="CPUs of each; the job's.")
    gpus: Gpus = Field(None, description="GPUs of each; the job's.")
    memory: Memory = Field(None, description="Memory of each; the job's.")
    command: CommandText = Field("", description="Command of this role; framework.command.")
    service: Flag = Field(
        None, description="It waits for ever, and is ended when the others are done; true for ps, else false."
    )


class ElasticBatchBlock(Block):
    """Samples per step."""

    min: NeededCount = Field(description="Minimum batch of all GPUs together.")
    max: NeededCount = Field(description="Maximum batch of all GPUs together.")
    per_gpu_max: NeededCount = Field(description="Largest batch that fits into the memory of one GPU.")
    start: Count = Field(None, description="Batch of the first attempt, for which the learning rate was chosen; min.")


class ElasticBlock(Block):
    """Sizes that a job can have while it trains."""

    min_learners: Count = Field(None, description="Minimum number of learners; 1.")
    max_learners: NeededCount = Field(description="Maximum number of learners.")
    batch: ElasticBatchBlock = Field(description="Range of batches, in samples per step.")
    weight: Weight = Field(None, description="Weight of the job's throughput in decisions about its pool; 1.")
    pool: Annotated[str, BeforeValidator(read_pool), WithJsonSchema({"type": _TEXT, "pattern": _POOL_SCHEMA})] = Field(
        "", description="Pool of GPUs that the job shares with other elastic jobs; default."
    )
    learning_rate: Annotated[str, BeforeValidator(one_of(LEARNING_RATES, "linear")), word_schema(*LEARNING_RATES)] = (
        Field("linear", description="How LEARNING_RATE_SCALE depends on the batch: linear, sqrt, none.")
    )
    in_place: Flag = Field(
        None, description="The other learners continue when those with the highest numbers leave; false."
    )


class NotifyBlock(Block):
    """Recipients of notices."""

    mail: Label = Field("", description="Mail address or user.")
    events: MailEvents = Field((), description="sbatch's --mail-type words.")
    webhook: Annotated[Label, AfterValidator(_webhook)] = Field("", description="Address that gets a POST.")


class SlurmBlock(Block):
    """What only Slurm knows."""

    args: SlurmArgs = Field((), description="Further long options of sbatch, passed on unchanged.")


class BatchBlock(Block):
    """Scheduling and running: our extension; FfDL ignores it."""

    time: TimeLimit = Field(None, description="Time limit: minutes, [days-]hours:minutes:seconds, 2h30m, or UNLIMITED.")
    profile: Label = Field("", description="Profile of the site's configuration.")
    partition: Label = Field("", description="Slurm partition(s).")
    account: Label = Field("", description="Account that is charged.")
    qos: Label = Field("", description="Quality of service.")
    constraint: Label = Field("", description="Node features, as sbatch takes them.")
    reservation: Label = Field("", description="Reservation.")
    priority: Label = Field("", description="Priority, as the backend names or numbers it.")
    preemptible: Flag = Field(None, description="May be preempted.")
    placement: Annotated[str, BeforeValidator(one_of(PLACEMENTS, "node")), word_schema(*PLACEMENTS)] = Field(
        "node", description="node: one learner per node; pack: few nodes; spread: many."
    )
    network: Annotated[NetworkBlock, BeforeValidator(_level_alone), Field(json_schema_extra=_or_level)] = Field(
        NetworkBlock.model_validate({}), description="A level, or a mapping with level and allow."
    )
    env: Env = Field({}, description="Variables of the learner's environment.")
    secrets: Env = Field(
        {}, description="Variables of the learner whose values are secret: ${secret:NAME}, ${env:NAME} or ${file:PATH}."
    )
    checkpoint: CheckpointBlock | None = Field(None, description="How checkpoints are asked for.")
    retry: RetryBlock | None = Field(None, description="Further attempts.")
    health: HealthBlock | None = Field(None, description="When a learner counts as hung.")
    idle: IdleBlock | None = Field(None, description="When a job with idle GPUs is ended; never.")
    restart: Annotated[str, BeforeValidator(one_of(RESTARTS, "job")), word_schema(*RESTARTS)] = Field(
        "job", description="What a failed learner ends: job, the attempt; learner, itself, and it is started again."
    )
    staging: Annotated[str, BeforeValidator(one_of(STAGINGS, "inline")), word_schema(*STAGINGS)] = Field(
        "inline", description="When data come from stores: inline; ahead, before GPUs are asked for."
    )
    mount: Annotated[str, BeforeValidator(one_of(MOUNTINGS, "")), word_schema(*MOUNTINGS)] = Field(
        "", description="Whether nodes mount what FfDL mounts, instead of bringing it: auto, always, never."
    )
    roles: Annotated[dict[str, RoleBlock], BeforeValidator(nothing_is_empty)] = Field({}, description="Roles by name.")
    array: Annotated[str, BeforeValidator(read_array), WithJsonSchema({"type": _TEXT})] = Field(
        "", description="Job array, as 0-9%2: one job per index; beside a sweep, which of its elements."
    )
    sweep: Annotated[object, WithJsonSchema(SWEEP_SCHEMA)] = Field(
        None, description="Variables of each element of an array: a grid of lists, or a list of mappings."
    )
    elastic: Annotated[ElasticBlock | None, BeforeValidator(nothing_is_empty)] = Field(
        None, description="Sizes that the job can have while it trains."
    )
    notify: NotifyBlock | None = Field(None, description="Recipients of notices, and the events that cause one.")
    slurm: SlurmBlock | None = Field(None, description="What only Slurm knows.")
    slurm_environment: Flag = Field(
        None, description="Learners find SLURM_* variables, srun and scontrol, on every backend; false."
    )
    kubernetes: Words = Field({}, description="What only Kubernetes knows.")
    nodelist: Label = Field("", description="Nodes to use.")
    exclude: Label = Field("", description="Nodes to avoid.")
    dependency: Annotated[str, BeforeValidator(read_dependency), WithJsonSchema({"type": _TEXT})] = Field(
        "", description="As sbatch --dependency; training ids stand for jobs."
    )
    begin: Annotated[str, BeforeValidator(read_begin), WithJsonSchema({"type": _TEXT})] = Field(
        "", description="Earliest start, as sbatch --begin, or with an offset from UTC."
    )
    hold: Flag = Field(None, description="Submit held.")
    requeue: Requeue = Field(None, description="May be requeued; expedite: at once, and before other jobs.")
    signal: Annotated[str, BeforeValidator(read_signal), WithJsonSchema({"type": _TEXT})] = Field(
        "", description="As sbatch --signal: [R:]name[@seconds]."
    )
    comment: Label = Field("", description="Comment in the scheduler's records.")
    output: Label = Field("", description="File that gets the output too, as sbatch --output.")
    gres: Gres = Field({}, description="Further generic resources of each learner, as name:count or a mapping.")


class ManifestBlock(FfdlBlock):
    """A training job: FfDL's manifest and, under `batch`, how it is scheduled and run."""

    batch: BatchBlock | None = Field(None, description="Scheduling and running: our extension; FfDL ignores it.")


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, object]:
    """JSON Schema 2020-12 of a manifest as an ordinary YAML or JSON reader loads it, `batch:` included.

    It accepts what :func:`parse_manifest` accepts as far as a schema can say it: rules across fields and what is
    known to the site alone (frameworks, partitions) are beyond it. Unknown keys are allowed, as in FfDL.
    """
    return copy.deepcopy(_schema())


@lru_cache(maxsize=1)
def _schema() -> dict[str, object]:
    generated = ManifestBlock.model_json_schema(by_alias=True)
    for block in (generated, *generated["$defs"].values()):
        for described in block["properties"].values():
            _tidy(described)
    return {"$schema": DIALECT, **generated, "title": "FfDL manifest"}


def _tidy(described: dict[str, Any]) -> None:
    """Drop the generated title, which repeats the key, and let a block or list be written without a value."""
    described.pop("title", None)
    if described.get("type") in ("object", "array"):
        described["type"] = [described["type"], "null"]

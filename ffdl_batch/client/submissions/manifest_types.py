"""The manifest as types for mappings, so that editors and type checkers know its keys.

``Manifest(name="x", framework=Framework(...))`` and ``{"name": "x", ...}`` are the same mapping. Keys, values and
defaults are those of the manifest's reference page; the daemon checks them.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

Text = str | int | float | bool | None
Count = int | str | None
Number = int | float | str | None
Flag = bool | None


class ImageLocation(TypedDict, total=False):
    """``framework.image_location``: a private registry."""

    registry: str
    namespace: str
    user_name: str
    access_token: str
    email: str


class Framework(TypedDict, total=False):
    """``framework``: what runs."""

    name: Required[str]
    version: Required[str]
    command: Required[str]
    image_tag: str
    image_location: ImageLocation


class Container(TypedDict, total=False):
    """``training_data`` and ``training_results``: a bucket, or a directory below the store's path."""

    container: str


class DataStore(TypedDict, total=False):
    """An item of ``data_stores``."""

    id: str
    type: str
    training_data: Container
    training_results: Container
    connection: Mapping[str, Text]


class MetricValue(TypedDict, total=False):
    """A value of ``evaluation_metrics.groups``."""

    type: str
    value: Text


class MetricMeta(TypedDict, total=False):
    """``meta`` of a group of metrics."""

    time: str


class MetricGroup(TypedDict, total=False):
    """A group of ``evaluation_metrics.groups``."""

    regex: str
    meta: MetricMeta
    scalars: Mapping[str, MetricValue]
    etimes: Mapping[str, MetricValue]


_Input = TypedDict("_Input", {"in": str}, total=False)


class EvaluationMetrics(_Input, total=False):
    """``evaluation_metrics``: how metrics are collected."""

    type: str
    image_tag: str
    line_lookahead: Count
    eventTypes: Sequence[str]  # noqa: N815 - FfDL's name
    groups: Mapping[str, MetricGroup]


class Network(TypedDict, total=False):
    """``batch.network``."""

    level: Literal["auto", "none", "job", "egress", "host"]
    allow: Sequence[str]


class Checkpoint(TypedDict, total=False):
    """``batch.checkpoint``."""

    signal: str
    grace_s: Count
    lead_s: Count
    shared: Flag
    saved_by: Literal["all", "first"]


class Retry(TypedDict, total=False):
    """``batch.retry``."""

    timeouts: Count
    preemptions: Count
    node_failures: Count
    failures: Count
    gpu_hours: Number


class Health(TypedDict, total=False):
    """``batch.health``."""

    hang_s: Count


_For = TypedDict("_For", {"for": Text}, total=False)


class Idle(_For, total=False):
    """``batch.idle``."""

    gpu_below: Number


class Role(TypedDict, total=False):
    """A role of ``batch.roles``."""

    learners: Count
    cpus: Number
    gpus: Number
    memory: Text
    command: str
    service: Flag


class ElasticBatch(TypedDict, total=False):
    """``batch.elastic.batch``."""

    min: Required[int]
    max: Required[int]
    per_gpu_max: Required[int]
    start: Count


class Elastic(TypedDict, total=False):
    """``batch.elastic``."""

    min_learners: Count
    max_learners: Required[int]
    batch: Required[ElasticBatch]
    weight: Number
    pool: str
    learning_rate: Literal["linear", "sqrt", "none"]
    in_place: Flag


class Notify(TypedDict, total=False):
    """``batch.notify``."""

    mail: str
    events: str | Sequence[str]
    webhook: str


class Slurm(TypedDict, total=False):
    """``batch.slurm``."""

    args: Sequence[str]


class Batch(TypedDict, total=False):
    """``batch``: scheduling and running."""

    time: Text
    profile: str
    partition: str
    account: str
    qos: str
    constraint: str
    reservation: str
    priority: Text
    preemptible: Flag
    placement: Literal["node", "pack", "spread"]
    network: str | Network
    env: Mapping[str, Text]
    secrets: Mapping[str, str]
    checkpoint: Checkpoint
    retry: Retry
    health: Health
    idle: Idle
    restart: Literal["job", "learner"]
    staging: Literal["inline", "ahead"]
    mount: Literal["auto", "always", "never"]
    roles: Mapping[str, Role]
    array: str
    sweep: Mapping[str, Sequence[Text]] | Sequence[Mapping[str, Text]]
    elastic: Elastic
    notify: Notify
    slurm: Slurm
    slurm_environment: Flag
    kubernetes: Mapping[str, str]
    nodelist: str
    exclude: str
    dependency: str
    begin: str
    hold: Flag
    requeue: bool | Literal["expedite"] | None
    signal: str
    comment: str
    output: str
    gres: str | Mapping[str, int]


class Manifest(TypedDict, total=False):
    """A training job: FfDL's manifest, and under ``batch`` how it is scheduled and run."""

    name: Required[str]
    description: str
    version: Text
    cpus: Number
    gpus: Number
    gpu_type: str
    learners: Count
    memory: Text
    storage: Text
    data_stores: Sequence[DataStore]
    framework: Required[Framework]
    evaluation_metrics: EvaluationMetrics
    batch: Batch

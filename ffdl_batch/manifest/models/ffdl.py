"""FfDL's manifest as pydantic models: the one source of validation and of the JSON Schema.

The models read what :func:`ffdl_batch.manifest.document.tree.to_raw` gives: raw texts, never YAML's guesses. Unknown
keys are not their business (see :mod:`ffdl_batch.manifest.checks.keys`); rules that span several fields are in
:mod:`ffdl_batch.manifest.stores` and :mod:`ffdl_batch.manifest.checks.ffdl_differences`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ffdl_batch.domain.job.spec import StoreType
from ffdl_batch.domain.network_address import is_authority
from ffdl_batch.manifest.command import read_command
from ffdl_batch.manifest.models.scalars import (
    TEXT_SCHEMA,
    Count,
    CountFromZero,
    Cpus,
    Gpus,
    Label,
    Memory,
    Size,
    Text,
    kind_of,
    read_label,
    read_text,
    refusal,
    shown,
)

STORE_TYPES = tuple(str(t) for t in StoreType)
MAX_COMMAND_BYTES = 64 * 1024
"""Maximum size of a command. Linux limits a variable to 128 KiB (execve(2), MAX_ARG_STRLEN), and some characters are
escaped."""


def _registry(text: str) -> str:
    if text and ("://" in text or not is_authority(text.partition("/")[0])):
        raise refusal(f"{shown(text)} is not the host of a registry", "write HOST or HOST:PORT, without https://")
    return text


Registry = Annotated[Label, AfterValidator(_registry)]


def read_store_type(value: object) -> str:
    """A data store's type, or "" for nothing."""
    text = read_label(value)
    if text and text not in STORE_TYPES:
        raise refusal(f"{shown(text)} is not a type of data store", f"write one of {', '.join(STORE_TYPES)}")
    return text


def read_command_text(value: object) -> str:
    """Return the command as it is written; "" for None."""
    text = read_text(value)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_COMMAND_BYTES:
        cure = "put it into a file of the model, and write `bash FILE`"
        raise refusal(f"the command has {size} bytes; the maximum is {MAX_COMMAND_BYTES}", cure)
    if text.strip() and not read_command(text).runs:
        raise refusal("it has only comments, so nothing would run", "write the command on a line without #")
    return text if text.strip() else ""


def _needed(text: str) -> str:
    if not text.strip():
        raise refusal("not set")
    return text


def nothing_is_empty(value: object) -> object:
    """A key without a value, where a mapping may stand, is an empty mapping."""
    return {} if value is None else value


def nothing_is_no_item(value: object) -> object:
    """A key without a value, where a list may stand, is an empty list."""
    if value is not None and not isinstance(value, list):
        raise refusal(f"a list is needed here, not {kind_of(value)}", "begin each item with '- '")
    return value or []


_NEEDED_SCHEMA = {"type": ["string", "number", "boolean"], "pattern": r"\S"}
NeededLabel = Annotated[str, BeforeValidator(read_label), AfterValidator(_needed), WithJsonSchema(_NEEDED_SCHEMA)]
CommandText = Annotated[str, BeforeValidator(read_command_text), TEXT_SCHEMA]
NeededCommand = Annotated[
    str, BeforeValidator(read_command_text), AfterValidator(_needed), WithJsonSchema(_NEEDED_SCHEMA)
]
StoreTypeName = Annotated[str, BeforeValidator(read_store_type), WithJsonSchema({"enum": [*STORE_TYPES, "", None]})]


class Block(BaseModel):
    """One mapping of the manifest."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=False)


class ImageLocationBlock(Block):
    """A private image registry (dialect of AISphere's command line)."""

    registry: Registry = Field("", description="Registry host, as registry.example.org.")
    namespace: Label = Field("", description="Namespace (organisation) in the registry.")
    user_name: Text = Field("", description="User whose token or password it is; FfDL's is called token.")
    access_token: Text = Field("", description="Token or password that may pull; ${secret:NAME}.")
    email: Label = Field("", description="Address that belongs to the token.")


class FrameworkBlock(Block):
    """The framework, its version and the command."""

    name: NeededLabel = Field(description="Framework: tensorflow, pytorch, caffe, horovod, …, or custom.")
    version: NeededLabel = Field(description="Version of the framework; for custom, the whole image reference.")
    command: NeededCommand = Field(
        description="Shell text that bash runs in $MODEL_DIR; lines that are indented and start with - continue a line."
    )
    image_tag: Label = Field("", description="FfDL ignores it; recorded only.")
    image_location: ImageLocationBlock | None = Field(None, description="Where a private image lies.")


class ContainerBlock(Block):
    """A bucket of an object store or a directory under a mounted path."""

    container: Label = Field("", description="Bucket, or sub-directory of the store's path.")


class DataStoreBlock(Block):
    """Where input data come from and results go to."""

    id: Label = Field("", description="Name of the store in messages and of its secrets.")
    type: StoreTypeName = Field("", description="Kind of store; directory is ours, the others are FfDL's.")
    training_data: ContainerBlock | None = Field(None, description="Input data.")
    training_results: ContainerBlock | None = Field(None, description="Results; left out, they stay with the job.")
    connection: Annotated[dict[str, Text] | None, Field(description="Address and credentials, by FfDL's names.")] = None


class MetricValueBlock(Block):
    """Type and value of a scalar or a time axis."""

    type: Label = Field("", description="STRING, JSONSTRING, INT or FLOAT.")
    value: Text = Field("", description="$group of the regex, or a literal.")


class MetricMetaBlock(Block):
    """Meta data of a metric group."""

    time: Text = Field("", description="Reference such as $timestamp; FfDL's extractor ignores it.")


Values = Annotated[dict[str, MetricValueBlock], BeforeValidator(nothing_is_empty)]


class MetricGroupBlock(Block):
    """One group of the regex extractor."""

    regex: Text = Field("", description="Python regular expression; %{FLOAT:name} and its like are macros.")
    meta: MetricMetaBlock | None = Field(None, description="Meta data.")
    scalars: Values = Field({}, description="Values by name.")
    etimes: Values = Field({}, description="Time axes by name.")


class EvaluationMetricsBlock(Block):
    """How metrics are collected from the job."""

    type: Label = Field(
        "", description="tensorboard, emetrics_file, regex_extractor, logger or none; FfDL ran others as images."
    )
    image_tag: Label = Field("", description="Tag of the collector's image.")
    in_: Text = Field("", alias="in", description="Carried along; no collector reads it.")
    line_lookahead: CountFromZero = Field(None, description="Lines that the regex extractor looks at together; 4.")
    event_types: Annotated[list[Text], BeforeValidator(nothing_is_no_item)] = Field(
        [], alias="eventTypes", description="Kinds of events; FfDL's collectors ignore it."
    )
    groups: Annotated[dict[str, MetricGroupBlock], BeforeValidator(nothing_is_empty)] = Field(
        {}, description="Groups of the regex extractor."
    )


class FfdlBlock(Block):
    """The top level without `batch`: FfDL's manifest, unchanged."""

    name: NeededLabel = Field(description="Name of the job; free text.")
    description: Text = Field("", description="Free text.")
    version: Text = Field("", description="Free text; FfDL stores it nowhere.")
    cpus: Cpus = Field(None, description="CPUs of each learner.")
    gpus: Gpus = Field(None, description="GPUs of each learner; a fraction is a share of one, where that exists.")
    gpu_type: Label = Field("", description="Type of the GPUs as the site names it; left out, any type will do.")
    learners: Count = Field(None, description="Number of learners.")
    memory: Memory = Field(None, description="Memory of each learner, as 8GB or 8GiB; all: that of its node.")
    storage: Size = Field(
        None, description="Disk space of each learner on its node, where the backend limits it (Kubernetes)."
    )
    data_stores: Annotated[list[DataStoreBlock], BeforeValidator(nothing_is_no_item)] = Field(
        [], description="Where data come from and results go to: none, one or more."
    )
    framework: FrameworkBlock = Field(description="What runs.")
    evaluation_metrics: EvaluationMetricsBlock | None = Field(None, description="How metrics are collected.")

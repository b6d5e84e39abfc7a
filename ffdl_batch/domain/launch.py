"""The launch file: everything a controller needs to run one attempt. Runs on Python 3.9.

`plan` of an adapter writes it, the head and node controllers obey it. The controller builds no command line
of its own: every argv here is complete but for placeholders, which :func:`fill` replaces.

Placeholders: ``{attempt_dir}`` ``{job_dir}`` ``{launch}`` ``{python}`` ``{controller}`` ``{scratch}`` (node-local,
0700, one per attempt and node) ``{learner_id}`` (from 1) ``{rank}`` (from 0) ``{local_rank}`` ``{node_rank}``
``{gpus}`` (the learner's device list, comma separated) ``{gpu_count}`` ``{env_file}`` ``{hostname}``
``{master_addr}`` ``{netns}``. A literal brace is doubled.
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass, field
from enum import Enum
from typing import Mapping, Optional, Tuple

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain

FORMAT = 1
EXPORTS_VARIABLE = "FFDL_EXPORTS"
"""Carries, as shell text in ANSI-C quoting, variables that a container runtime would alter; the learner's shell
evaluates it first (FILE delivery only)."""


class LaunchFileError(ValueError):
    """A launch file that this release cannot obey."""


class EnvDelivery(str, Enum):
    """How a learner gets its environment."""

    PROCESS = "process"
    """The variables are the environment of the started process."""
    FILE = "file"
    """The controller writes them to ``{env_file}`` as ``NAME='value'`` lines in shell quoting; argv names the file."""


@dataclass(frozen=True)
class LearnerCommand:
    """How one learner is started.

    `argv` and the values of `env` may hold placeholders. `env` is FfDL's contract with user code; what the
    user asked for on top (the attempt's ``environment.json``, literal values) wins over it, but never over
    `protected` names. `pass_host` are names (or prefixes ending in ``*``) of the node's environment that the
    started process keeps; with PROCESS delivery the learner sees them.
    """

    argv: Tuple[str, ...]
    env: Mapping[str, str]
    delivery: EnvDelivery = EnvDelivery.PROCESS
    pass_host: Tuple[str, ...] = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
    protected: Tuple[str, ...] = ()
    working_dir: str = "{attempt_dir}"


@dataclass(frozen=True)
class Copy:
    """Copy the directory tree `source` into `target` before the learners start."""

    source: str
    target: str


@dataclass(frozen=True)
class Stores:
    """Where results go when the learners have ended; empty text = they stay where they are.

    `results` receives the content of $RESULT_DIR, `logs` receives ``learner-<n>/``, `model` the model archive
    (FfDL's ``_submitted_code/model.zip``).
    """

    results: str = ""
    logs: str = ""
    model: str = ""


@dataclass(frozen=True)
class Limits:
    """Seconds. `time_s` is enforced by the head only where no scheduler does it (None = somebody else does)."""

    grace_s: int = 60
    kill_wait_s: int = 30
    time_s: Optional[int] = None
    heartbeat_s: float = 10.0
    fence_s: float = 120.0


@dataclass(frozen=True)
class Network:
    """What was asked for and what the plan proved it can have; `mechanism` says by what."""

    requested: str = "auto"
    level: str = "host"
    mechanism: str = "none"


@dataclass(frozen=True)
class HostVariables:
    """Names of the node's environment variables that carry the scheduler's facts ("" = there is none)."""

    native_id: str = "FFDL_NATIVE_ID"
    restart_count: str = ""
    node_rank: str = "FFDL_NODE_RANK"
    node_list: str = ""
    gpus: str = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class LaunchFile:
    """One attempt, ready to run. Paths are absolute paths on the nodes.

    `nodes` node controllers each run `learners_per_node` learners (the last one fewer if `learners` runs out).
    `step` is the argv by which the head starts all node controllers at once; with empty `step` the head runs
    one node controller itself. `echo_output`: node controllers copy their learners' log to standard output too.
    `needs_dirs` are directories with input that every node has to be able to read before its learners start; plain
    paths, no placeholders.
    """

    job_id: str
    attempt: int
    token: str
    job_dir: str
    attempt_dir: str
    doorbell: str
    learner: LearnerCommand
    learners: int = 1
    nodes: int = 1
    learners_per_node: int = 1
    step: Tuple[str, ...] = ()
    model_archive: str = ""
    copies: Tuple[Copy, ...] = ()
    stores: Stores = field(default_factory=Stores)
    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    host: HostVariables = field(default_factory=HostVariables)
    checkpoint_signal: str = "USR2"
    scratch_base: str = "/tmp"  # noqa: S108 - a default that sites override; the directory in it is made 0700
    make_dirs: Tuple[str, ...] = ()
    needs_dirs: Tuple[str, ...] = ()
    echo_output: bool = False
    written_by: str = ""
    format: int = FORMAT


def encode(launch: LaunchFile) -> str:
    """The text of ``launch.json``; the same value always gives the same text."""
    return json.dumps(to_plain(launch), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def decode(text: str) -> LaunchFile:
    """Read ``launch.json``; raises :class:`LaunchFileError` that says what does not fit."""
    try:
        plain = json.loads(text)
        found = plain.get("format") if isinstance(plain, dict) else None
        if found != FORMAT:
            raise LaunchFileError(f"the launch file has format {found!r}; this controller knows {FORMAT}")
        return from_plain(LaunchFile, plain)
    except (CodecError, json.JSONDecodeError) as error:
        raise LaunchFileError(f"the launch file is damaged: {error}") from error


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of `text`; an unknown one raises :class:`LaunchFileError`.

    Only plain names are placeholders: no attribute access, no indexes, no format specifications.
    """
    parts = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            parts.append(literal)
            if name is None:
                continue
            if spec or conversion or name not in values:
                raise LaunchFileError(f"{{{name}}} is not a placeholder of this release")
            parts.append(values[name])
    except ValueError as error:
        raise LaunchFileError(f"{text!r}: {error}") from error
    return "".join(parts)


def literal(text: str) -> str:
    """`text` such that :func:`fill` gives it back unchanged."""
    return text.replace("{", "{{").replace("}", "}}")

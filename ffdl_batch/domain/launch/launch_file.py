"""The launch file: everything a controller needs to run one attempt. Runs on Python 3.9.

`plan` of an adapter writes it; the head and node controllers execute it. The controller builds no command line of its
own: every argv here is complete except for placeholders, which :func:`ffdl_batch.domain.launch.placeholders.fill`
replaces.

Placeholders: ``{attempt_dir}`` ``{job_dir}`` ``{launch}`` ``{python}`` ``{controller}`` ``{scratch}`` (node-local,
0700, one per attempt and node) ``{learner_id}`` (from 1) ``{rank}`` (from 0) ``{local_rank}`` ``{node_rank}``
``{gpus}`` (the learner's device list, comma separated) ``{gpu_count}`` ``{env_file}`` ``{hostname}`` ``{master_addr}``
``{netns}`` ``{attempt}`` (from 1) ``{restart}`` (how often the scheduler started this attempt again) ``{resume}`` (1 if
an earlier attempt or run may have left a checkpoint, else 0) ``{confirmed}`` (as in :class:`LaunchFile`), and for the
rendezvous: ``{local_world_size}`` ``{machine_rank}`` ``{machines}`` ``{local_index}`` ``{role}`` ``{role_index}``
``{name}`` ``{address}`` ``{master_port}`` ``{port}`` ``{tf_config}`` ``{hosts_file}`` ``{command}``, see
:mod:`ffdl_batch.controller.rendezvous.learner_addresses`. ``{image}`` is the container's image on the node. A literal
brace is doubled. The word ``{device_options}`` of a learner's argv becomes any number of words
(:mod:`ffdl_batch.domain.launch.devices`).
"""

from __future__ import annotations

import json
from dataclasses import field
from enum import Enum
from typing import Mapping, Optional, Tuple

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.data.mounts import Mounts
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.file_format import FORMAT, require_known
from ffdl_batch.domain.launch.devices import Devices
from ffdl_batch.domain.launch.limits import Limits, LogLimits
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.metrics.records import Collecting
from ffdl_batch.domain.outcome.continuation import Budget, Spent
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.permissions import PRIVATE_UMASK

TEMPLATE = "next"
"""Replaces an attempt's number in the names of a template: ``<job id>-next``, ``<job id>/attempt-next``."""
EXPORTS_VARIABLE = "FFDL_EXPORTS"
"""Carries variables that a container runtime would alter, as shell text in ANSI-C quoting; the learner's shell
evaluates it first (FILE delivery only)."""


class EnvDelivery(str, Enum):
    """How a learner gets its environment."""

    PROCESS = "process"
    """The variables are the environment of the started process."""
    FILE = "file"
    """The controller writes them to ``{env_file}`` as ``NAME='value'`` lines in shell quoting; argv names the file."""


@dataclass(frozen=True)
class LearnerCommand:
    """How one learner is started."""

    argv: Tuple[str, ...]
    """May hold placeholders; so may the values of `env`."""
    env: Mapping[str, str]
    """FfDL's contract with user code. The user's own variables (the attempt's ``environment.json``, literal values) win
    over it."""
    delivery: EnvDelivery = EnvDelivery.PROCESS
    pass_host: Tuple[str, ...] = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
    """Names (or prefixes ending in ``*``) of the node's environment that the started process keeps. With PROCESS
    delivery the learner sees them."""
    protected: Tuple[str, ...] = ()
    """Names whose value in `env` wins over the user's own."""
    working_dir: str = "{attempt_dir}"
    host_values: Mapping[str, str] = field(default_factory=dict)
    """Variable → variable of the node's environment whose value it gets, if the node has it."""


@dataclass(frozen=True)
class Copy:
    """Copy the directory tree `source` into `target` before the learners start."""

    source: str
    target: str


@dataclass(frozen=True)
class Stores:
    """Where results are stored when the learners have ended; empty text = they stay in the attempt's directory."""

    results: str = ""
    """Receives the content of $RESULT_DIR."""
    logs: str = ""
    """Receives ``learner-<n>/``."""
    model: str = ""
    """Receives the model archive (FfDL's ``_submitted_code/model.zip``)."""


@dataclass(frozen=True)
class NodeCache:
    """The cache of each node, or of all nodes, for data from stores."""

    directory: str
    """"" = data are not cached, and `images` has the image."""
    limit_bytes: int = 0
    """0 = half of its file system."""
    image: str = ""
    """Replaces ``{image}`` by a file of the cache that `program` makes from this image; "" = it does not."""
    program: str = "apptainer"
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Of the image's registry, as in :class:`ffdl_batch.domain.data.image_task.ImageTask`; the values are in the
    attempt's file of secrets."""
    images: str = ""


@dataclass(frozen=True)
class Signature:
    """The signature that the site requires for the learners' image."""

    verify: Tuple[str, ...]
    """Argv that verifies the image (its last argument) and prints the signers as JSON; no placeholders."""
    signers: Tuple[str, ...]
    """Fingerprints of the accepted keys."""


RESTART_LEARNER = "learner"
"""`LaunchFile.restart`: a training learner that fails is started again, and the others continue."""


@dataclass(frozen=True)
class Network:
    """The network that was requested, and the one that the plan proved available."""

    requested: str = "auto"
    level: str = "host"
    mechanism: str = "none"
    """What enforces the level."""
    directory: str = ""
    """Where the site's prolog describes, on each node, the network that it has made for a job; "" = the job has none of
    its own."""
    offered: Tuple[str, ...] = ()
    """The levels with access to other hosts, egress and host, that the backend can prove and the site permits."""


@dataclass(frozen=True)
class HostVariables:
    """Names of the node's environment variables that carry the scheduler's facts; "" = there is none."""

    native_id: str = "FFDL_NATIVE_ID"
    restart_count: str = ""
    node_rank: str = "FFDL_NODE_RANK"
    node_list: str = ""
    gpus: str = "CUDA_VISIBLE_DEVICES"
    allocation: str = ""
    """The number by which root programs of the site know the job on its nodes. For a task of an array it is not its
    `native_id`."""
    address: str = ""
    """The address of this node for the others, if the scheduler sets it."""
    machine: str = ""
    """The name of the node, if its host has another one."""


@dataclass(frozen=True)
class Pod:
    """Node controllers run in pods (:mod:`ffdl_batch.domain.launch.pod_protocol`), each beside a container with one
    learner."""

    directory: str
    """The pod's own."""
    apart: bool = True
    """Whether each pod has a tree of jobs of its own; the platform then transfers what the others' controllers
    wrote."""
    cut_off: bool = False
    """Whether the pods cannot reach the stores. Data were brought before, and results are stored after the pods are
    gone."""
    uploads_pending: bool = False
    """Whether this pod stores what the attempt left: it has the attempt's files and starts no learner."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Directory in the pod → ``claim/path in it`` of the cluster."""
    store_patience_s: float = 0.0
    """How long a pod with its own tree tries to store what is deleted with it."""

    def place_of(self, path: str) -> str:
        """Return where `path` is, as ``claim/path in it``; "" if it is in none of `claims`."""
        for top in sorted(self.claims, key=len, reverse=True):
            if f"{path}/".startswith(f"{top.rstrip('/')}/"):
                claim, _, base = self.claims[top].partition("/")
                below = "/".join(filter(None, (base.strip("/"), path[len(top.rstrip("/")) :].strip("/"))))
                return f"{claim}/{below}"
        return ""

    def claimed(self, path: str) -> str:
        """Return the claim and the path in it as text; "" if `path` is in none of `claims`."""
        claim, _, below = self.place_of(path).partition("/")
        return f"in the cluster's claim {claim}, at {below or 'its top'}" if claim else ""


@dataclass(frozen=True)
class Succession:
    """How the head submits the next attempt without the daemon."""

    template: str
    """Directory with the files of the attempt called :data:`TEMPLATE`; :func:`succeed` puts the next attempt's names
    into their texts."""
    submit: Tuple[str, ...] = ()
    """The argv that submits the next attempt (placeholders ``{native_id}`` of this attempt, ``{script}``, ``{lead_s}``,
    ``{token}``); empty = the process that started this attempt submits it after the head has ended."""
    requeue: Tuple[str, ...] = ()
    """The argv that has this attempt started again in place (``{native_id}``), if the site continues jobs like that."""
    keep_env: Tuple[str, ...] = ()
    """`submit` runs with only these variables of the environment."""
    timeout_s: float = 60.0
    budget: Budget = field(default_factory=Budget)
    spent: Spent = field(default_factory=Spent)
    gpus: float = 0.0
    """Of all nodes."""
    lead_s: Optional[int] = None
    deadline_variables: Tuple[str, ...] = ()
    """Environment variables that hold the epoch second of the time limit."""
    limit_s: Optional[int] = None
    """The requested limit, for schedulers that set none of these variables (Slurm 22.05 and older)."""
    limit_now: Tuple[str, ...] = ()
    """The argv that prints the present limit of the running job (``{native_id}``), which may have been changed, in the
    form [[days-]hours:]minutes:seconds."""


@dataclass(frozen=True)
class Seat:
    """The place of one learner."""

    node: int
    """Rank of its node."""
    role: str = ""
    """"" = the job has no roles."""
    index: int = 0
    """Number within its role, from 0."""
    service: bool = False
    """Whether it runs until the other learners are done."""
    gpus: int = 0
    """Whole devices."""


@dataclass(frozen=True)
class LaunchFile:
    """One attempt, ready to run. Paths are absolute paths on the nodes."""

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
    seats: Tuple[Seat, ...] = ()
    """By learner id; empty = each of `nodes` node controllers runs `learners_per_node` learners (the last one fewer if
    `learners` runs out)."""
    names: str = ""
    """Prefix of the learners' host names, ``<names>-<rank>``; "" = no hosts file is written, and nodes do not wait for
    each other before their learners start."""
    ports: int = 0
    """First port of a range of the job's own; 0 = none."""
    command: str = ""
    """The framework's command."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Role → its command, if it differs from `command`."""
    restart: str = ""
    """What follows the failure of a training learner: "" = the end of the job; :data:`RESTART_LEARNER` = it is started
    again, `restarts_max` times in all on a node, and then the job ends."""
    restarts_max: int = 0
    step: Tuple[str, ...] = ()
    """The argv by which the head starts all node controllers at once; empty = it runs one node controller itself. In a
    `pod` each pod starts its own, and the head, in the first pod, waits for the final events of the others."""
    shrinks: bool = False
    """Whether nodes may be released while learners on other nodes run (`batch.elastic.in_place`)."""
    out_of_memory: Tuple[str, ...] = ()
    """Texts that the program of `step` prints to standard error if the kernel killed a process of it for memory."""
    model_archive: str = ""
    copies: Tuple[Copy, ...] = ()
    fetches: Tuple[Transfer, ...] = ()
    """Brought from stores before the learners start, by the staging program. Those that `mounts` names may be mounted
    instead."""
    uploads: Tuple[Transfer, ...] = ()
    """Stored while the learners run and when they have ended. A transfer with ``{learner_id}`` in a text is made for
    each learner, by its node. A literal brace is doubled."""
    only_stages: bool = False
    """Whether the attempt only brings data and starts no learner."""
    trains_from: int = 1
    """Number of the first attempt that starts learners."""
    staging: Tuple[str, ...] = ()
    """The argv of the staging program; the file of its task follows."""
    cache: Optional[NodeCache] = None
    """For `fetches` and for the image."""
    signature: Optional[Signature] = None
    """None = the site requires none, or the image is not a file."""
    mounts: Optional[Mounts] = None
    stores: Stores = field(default_factory=Stores)
    limits: Limits = field(default_factory=Limits)
    logs: LogLimits = field(default_factory=LogLimits)
    network: Network = field(default_factory=Network)
    host: HostVariables = field(default_factory=HostVariables)
    devices: Devices = field(default_factory=Devices)
    checkpoint_signal: str = "USR2"
    checkpoint_saved_by: str = "all"
    """A :class:`~ffdl_batch.domain.job.spec.SavedBy`: whose answers confirm a checkpoint."""
    scratch_base: str = "/tmp"  # noqa: S108 - a default that sites override; the directory in it is made 0700
    make_dirs: Tuple[str, ...] = ()
    needs_dirs: Tuple[str, ...] = ()
    """Directories with input that every node must be able to read before its learners start; plain paths, no
    placeholders."""
    echo_output: bool = False
    """Whether node controllers copy their learners' log to standard output, too."""
    checkpoints: str = ""
    """$CHECKPOINT_DIR on the host."""
    carry: str = ""
    """Results directory of an earlier attempt, which is copied into this one's before the learners start; "" = none."""
    confirmed: str = ""
    """Newest file of the checkpoint that earlier attempts confirmed last, below `checkpoints`; "" = none."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable of the learners → name of its value in the attempt's ``secrets.json``. They win over all others except
    the protected ones."""
    collectors: Tuple[str, ...] = ()
    """Beginning of the argv of the program that collects metrics; the name of its spec follows."""
    metrics: Optional[Collecting] = None
    """What the collectors read from each learner; None = there are none."""
    health: str = ""
    """Where, on each node, a program of the site records what is wrong with the node; "" = there is none."""
    succession: Optional[Succession] = None
    """None = the head leaves every next attempt to the platform."""
    pod: Optional[Pod] = None
    umask: int = PRIVATE_UMASK
    """For learners, their logs, and what is stored outside the job's directory."""
    gid: Optional[int] = None
    """Group of what is stored, if neither its directory nor a learner has chosen one; None = that of the process."""
    written_by: str = ""
    format: int = FORMAT

    def seat_of(self, learner_id: int) -> Seat:
        """Return the seat of a learner; ids begin with 1."""
        if self.seats:
            return self.seats[learner_id - 1]
        return Seat((learner_id - 1) // self.learners_per_node, index=learner_id - 1)

    def command_of(self, learner_id: int) -> str:
        """Return the command of a learner."""
        return self.commands.get(self.seat_of(learner_id).role) or self.command

    def learners_on(self, node_rank: int) -> Tuple[int, ...]:
        """Return the ids of the learners of one node."""
        ids = range(1, self.learners + 1)
        return tuple(number for number in ids if self.seat_of(number).node == node_rank)

    @property
    def apart(self) -> bool:
        """Whether no node sees the files of another."""
        return self.pod is not None and self.pod.apart

    @property
    def cut_off(self) -> bool:
        """Whether its nodes reach no store."""
        return self.pod is not None and self.pod.cut_off

    @property
    def stores_elsewhere(self) -> bool:
        """Whether anything of the attempt is stored outside its own directory."""
        return bool(self.uploads or self.stores.results or self.stores.logs or self.stores.model)

    @property
    def trainees(self) -> Tuple[int, ...]:
        """The learners that decide the end of the job: all but the services."""
        return tuple(number for number in range(1, self.learners + 1) if not self.seat_of(number).service)


def encode(launch: LaunchFile) -> str:
    """Return the text of ``launch.json``; the same value always gives the same text."""
    return json.dumps(to_plain(launch), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def decode(text: str) -> LaunchFile:
    """Read ``launch.json``. Raises :class:`LaunchFileError`, whose message says what is wrong, and
    :class:`~ffdl_batch.domain.file_format.NewerFormat`."""
    try:
        plain = parse_json(text)
        found = plain.get("format") if isinstance(plain, dict) else None
        if not isinstance(found, int) or found < 1:
            raise LaunchFileError(f"the launch file has the format {found!r}, which is none")
        require_known(plain, "the launch file", str(plain.get("written_by") or ""))
        return from_plain(LaunchFile, plain)
    except LaunchFileError:
        raise
    except ValueError as error:
        raise LaunchFileError(f"the launch file is damaged: {error}") from error


def succeed(text: str, job_id: str, attempt: int) -> str:
    """Return the text of a template's file with the names of attempt number `attempt`.

    No user's text can hold these names: the id was drawn after the text was written.
    """
    named = text.replace(f"{job_id}/attempt-{TEMPLATE}", f"{job_id}/attempt-{attempt}")
    return named.replace(f"{job_id}-{TEMPLATE}", f"{job_id}-{attempt}")

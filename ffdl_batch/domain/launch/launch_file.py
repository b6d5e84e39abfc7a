"""The launch file: everything a controller needs to run one attempt. Runs on Python 3.9.

`plan` of an adapter writes it, the head and node controllers obey it. The controller builds no command line
of its own: every argv here is complete but for placeholders, which
:func:`ffdl_batch.domain.launch.placeholders.fill` replaces.

Placeholders: ``{attempt_dir}`` ``{job_dir}`` ``{launch}`` ``{python}`` ``{controller}`` ``{scratch}`` (node-local,
0700, one per attempt and node) ``{learner_id}`` (from 1) ``{rank}`` (from 0) ``{local_rank}`` ``{node_rank}``
``{gpus}`` (the learner's device list, comma separated) ``{gpu_count}`` ``{env_file}`` ``{hostname}``
``{master_addr}`` ``{netns}`` ``{attempt}`` (from 1) ``{restart}`` (how often the scheduler started this attempt anew)
``{resume}`` (1 where an earlier attempt or run may have left a checkpoint, else 0) ``{confirmed}`` (as in
:class:`LaunchFile`), and how the learners find each other: ``{local_world_size}`` ``{machine_rank}`` ``{machines}``
``{local_index}`` ``{role}`` ``{role_index}`` ``{name}``
``{address}`` ``{master_port}`` ``{port}`` ``{tf_config}`` ``{hosts_file}`` ``{command}``, see
:mod:`ffdl_batch.controller.rendezvous.learner_addresses`. ``{image}`` is the container's image on the node. A literal
brace is doubled. The word ``{device_options}`` of a learner's argv becomes any number of words
(:mod:`ffdl_batch.domain.launch.devices`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
from ffdl_batch.host.permissions import PRIVATE_UMASK

TEMPLATE = "next"
"""Stands for an attempt's number in the names of a template: ``<job id>-next``, ``<job id>/attempt-next``."""
EXPORTS_VARIABLE = "FFDL_EXPORTS"
"""Carries, as shell text in ANSI-C quoting, variables that a container runtime would alter; the learner's shell
evaluates it first (FILE delivery only)."""


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
    started process keeps; with PROCESS delivery the learner sees them. `host_values` are variables whose value is
    that of another one of the node's environment, where the node has it.
    """

    argv: Tuple[str, ...]
    env: Mapping[str, str]
    delivery: EnvDelivery = EnvDelivery.PROCESS
    pass_host: Tuple[str, ...] = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
    protected: Tuple[str, ...] = ()
    working_dir: str = "{attempt_dir}"
    host_values: Mapping[str, str] = field(default_factory=dict)


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
class NodeCache:
    """The cache of each node, or of all, for what comes from stores, and of how many bytes (0 = half of its file
    system). `image` is what ``{image}`` becomes, there as a file that `program` made ("" = that is not used), with
    `credentials` of its registry (:class:`ffdl_batch.domain.data.image_task.ImageTask`), whose values the attempt's
    file of secrets has. Where `directory` is "", data are not cached, and `images` has the image."""

    directory: str
    limit_bytes: int = 0
    image: str = ""
    program: str = "apptainer"
    credentials: Mapping[str, str] = field(default_factory=dict)
    images: str = ""


RESTART_LEARNER = "learner"
"""`LaunchFile.restart`: a training learner that fails is started again, and the others go on."""


@dataclass(frozen=True)
class Network:
    """What was asked for and what the plan proved it can have; `mechanism` says by what. `directory` is where the
    site's prolog tells, on each node, of the network that it has made for a job ("" = the job has none of its own)."""

    requested: str = "auto"
    level: str = "host"
    mechanism: str = "none"
    directory: str = ""


@dataclass(frozen=True)
class HostVariables:
    """Names of the node's environment variables that carry the scheduler's facts ("" = there is none). `allocation` is
    the number under which root programs of the site know the job on its nodes; for a task of an array it is not its
    `native_id`. `address` is where the others reach this node, where that is told, and `machine` what the node is
    called, where its host has another name."""

    native_id: str = "FFDL_NATIVE_ID"
    restart_count: str = ""
    node_rank: str = "FFDL_NODE_RANK"
    node_list: str = ""
    gpus: str = "CUDA_VISIBLE_DEVICES"
    allocation: str = ""
    address: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Pod:
    """The node controllers run in pods (:mod:`ffdl_batch.domain.launch.pod_protocol`), each beside a container with one
    learner.

    `directory` is the pod's own. `apart`: each pod has a tree of jobs of its own, and what the others' controllers said
    is brought by the platform. `cut_off`: stores cannot be reached from here. What is fetched was brought before, and
    what goes out is stored when the pods are gone, by one that `pays`: it has the attempt's files, starts no learner,
    and stores. `claims`: directories that pods have from claims of the cluster, each as ``claim/path in it``.
    `store_patience_s`: for so long a pod of its own tree tries to store what goes with it.
    """

    directory: str
    apart: bool = True
    cut_off: bool = False
    uploads_pending: bool = False
    claims: Mapping[str, str] = field(default_factory=dict)
    store_patience_s: float = 0.0

    def place_of(self, path: str) -> str:
        """Return where it is, as ``claim/path in it``; "" if it is in none of `claims`."""
        for top in sorted(self.claims, key=len, reverse=True):
            if f"{path}/".startswith(f"{top.rstrip('/')}/"):
                claim, _, base = self.claims[top].partition("/")
                below = "/".join(filter(None, (base.strip("/"), path[len(top.rstrip("/")) :].strip("/"))))
                return f"{claim}/{below}"
        return ""

    def claimed(self, path: str) -> str:
        """Return where it is in which claim, as text; "" if it is in none of `claims`."""
        claim, _, below = self.place_of(path).partition("/")
        return f"in the cluster's claim {claim}, at {below or 'its top'}" if claim else ""


@dataclass(frozen=True)
class Succession:
    """How the head arranges the next attempt alone.

    `template` is a directory with the files of the attempt called :data:`TEMPLATE`, in whose texts :func:`succeed` puts
    the next attempt's names. `submit` is the argv that submits it (placeholders ``{native_id}`` of this attempt,
    ``{script}``, ``{lead_s}``, ``{token}``), run with only `keep_env` of the environment; empty = whoever started this
    attempt submits the next one when the head has ended. `requeue` is the argv that has this attempt started anew in
    place (``{native_id}``), where the site continues like that. `gpus` are those of all nodes. `deadline_variables`
    are environment variables that hold the epoch second of the time limit; `limit_s` is the limit that was asked for,
    for schedulers that set none of them (Slurm 22.05 and older). `limit_now` is the argv that prints the limit as it is
    while the job runs (``{native_id}``), in the form [[days-]hours:]minutes:seconds: somebody may have changed it.
    """

    template: str
    submit: Tuple[str, ...] = ()
    requeue: Tuple[str, ...] = ()
    keep_env: Tuple[str, ...] = ()
    timeout_s: float = 60.0
    budget: Budget = field(default_factory=Budget)
    spent: Spent = field(default_factory=Spent)
    gpus: float = 0.0
    lead_s: Optional[int] = None
    deadline_variables: Tuple[str, ...] = ()
    limit_s: Optional[int] = None
    limit_now: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Seat:
    """Where one learner sits. `node` is a node's rank; `role` is its role ("" = the job has none), `index` its number
    within it, from 0. A `service` waits for ever: it is ended when the others are done. `gpus` are whole devices."""

    node: int
    role: str = ""
    index: int = 0
    service: bool = False
    gpus: int = 0


@dataclass(frozen=True)
class LaunchFile:
    """One attempt, ready to run. Paths are absolute paths on the nodes.

    `seats` says of each learner, in the order of their ids, where it sits; empty = each of `nodes` node controllers
    runs `learners_per_node` of them (the last one fewer if `learners` runs out).
    `step` is the argv by which the head starts all node controllers at once; with empty `step` the head runs
    one node controller itself. `echo_output`: node controllers copy their learners' log to standard output too.
    `needs_dirs` are directories with input that every node has to be able to read before its learners start; plain
    paths, no placeholders. `checkpoints` is $CHECKPOINT_DIR on the host. `carry` is the results directory of an earlier
    attempt, copied into this one's before the learners start ("" = none). `secrets` are variables of the learners, and
    for each the name of its value in the attempt's ``secrets.json``; they win over all others but the protected.
    Without `succession` the head leaves every next attempt to the platform. In a `pod` nobody starts all nodes at once:
    each pod starts its own, and the head, in the first, waits for the others' last words.

    `fetches` come from stores before the learners start, `uploads` go to stores while they run and when they have
    ended, both by the staging program, whose argv is `staging`; the file of its task follows. Texts of `uploads` may
    hold ``{learner_id}``: such a one is made for each learner, by its node. A literal brace is doubled there. `cache`
    is for `fetches`, and for the image. Those of `fetches` that `mounts` names may be
    mounted on each node instead. `only_stages`: what is fetched is all there is to do, and no learner starts.
    `trains_from` is the number of the first attempt that starts learners.

    `names` is the prefix of the learners' names, ``<names>-<rank>``; with "" no hosts file
    is written, and nodes do not wait for each other before their learners start. `ports` is the first port of a range
    that is the job's own (0 = none). `commands` are those of roles, where they differ from the framework's command;
    `command` is that one. `restart` says what follows on the failure of a training learner: "" = the end of the job;
    :data:`RESTART_LEARNER` = it is started again, `restarts_max` times in all on a node, and then the end. `metrics` is
    what collects them from what each learner writes (None = nothing does), by the program whose argv begins with
    `collectors` and ends with the name of its spec. `health` is where, on each node, a program of the site's writes
    down what is wrong with the node ("" = there is none).
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
    seats: Tuple[Seat, ...] = ()
    names: str = ""
    ports: int = 0
    command: str = ""
    commands: Mapping[str, str] = field(default_factory=dict)
    restart: str = ""
    restarts_max: int = 0
    step: Tuple[str, ...] = ()
    out_of_memory: Tuple[str, ...] = ()
    """Texts that the program of `step` prints to standard error if the kernel killed a process of it for memory."""
    model_archive: str = ""
    copies: Tuple[Copy, ...] = ()
    fetches: Tuple[Transfer, ...] = ()
    uploads: Tuple[Transfer, ...] = ()
    only_stages: bool = False
    trains_from: int = 1
    staging: Tuple[str, ...] = ()
    cache: Optional[NodeCache] = None
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
    echo_output: bool = False
    checkpoints: str = ""
    carry: str = ""
    confirmed: str = ""
    """Newest file of the checkpoint that earlier attempts confirmed last, below `checkpoints`; "" = none was."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    collectors: Tuple[str, ...] = ()
    metrics: Optional[Collecting] = None
    health: str = ""
    succession: Optional[Succession] = None
    pod: Optional[Pod] = None
    umask: int = PRIVATE_UMASK
    """Of learners, their logs, and what is stored outside the job's directory."""
    gid: Optional[int] = None
    """Group of what is stored, if neither its directory nor a learner has chosen one; None = that of the process."""
    written_by: str = ""
    format: int = FORMAT

    def seat_of(self, learner_id: int) -> Seat:
        """Where the learner sits; ids begin with 1."""
        if self.seats:
            return self.seats[learner_id - 1]
        return Seat((learner_id - 1) // self.learners_per_node, index=learner_id - 1)

    def learners_on(self, node_rank: int) -> Tuple[int, ...]:
        """The ids of the learners of one node."""
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
        """Whether anything of it goes elsewhere than into its own directory."""
        return bool(self.uploads or self.stores.results or self.stores.logs or self.stores.model)

    @property
    def trainees(self) -> Tuple[int, ...]:
        """The learners whose end is the job's: all but the services."""
        return tuple(number for number in range(1, self.learners + 1) if not self.seat_of(number).service)


def encode(launch: LaunchFile) -> str:
    """Return the text of ``launch.json``; the same value always gives the same text."""
    return json.dumps(to_plain(launch), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def decode(text: str) -> LaunchFile:
    """Read ``launch.json``; raises :class:`LaunchFileError` that says what does not fit, and
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
    """The text of a template's file for attempt number `attempt`.

    No user's text can hold these names: the id was drawn after it was written.
    """
    named = text.replace(f"{job_id}/attempt-{TEMPLATE}", f"{job_id}/attempt-{attempt}")
    return named.replace(f"{job_id}-{TEMPLATE}", f"{job_id}-{attempt}")

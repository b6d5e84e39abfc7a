"""What the commands of :mod:`ffdl_slurm.waiting_commands` print, as typed values. Pure.

An answer without what it has to have is :class:`ffdl_slurm.parsers.Garbled`. Text of users (reasons of drained nodes,
comments) stands behind what is read of a line: the first value of a key counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ffdl_batch.domain.observation import NativeId, Phase
from ffdl_batch.domain.quantity import parse_time_limit
from ffdl_batch.domain.waiting import Blocker, BlockerKind, Factor
from ffdl_slurm.commands import SEPARATOR
from ffdl_slurm.parsers import Garbled, count_nodes, parse_gpus, parse_time
from ffdl_slurm.said import begin
from ffdl_slurm.states import interpret_state
from ffdl_slurm.waiting_commands import FACTORS, LIVE_FIELDS
from ffdl_slurm.waiting_gpus import gpus_of

_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w/()]*)=")
_ABSENT = frozenset({"", "(null)", "N/A", "None", "n/a"})
_COLUMNS = len(LIVE_FIELDS) + 1
_HAS_NODES, _PREPARED = frozenset({"CONFIGURING", "POWER_UP_NODE"}), "Prolog"
"""States of a job whose nodes are being prepared, for which Slurm gives no reason, and the one that fits."""
_TAKES_NONE = (
    "DOWN",
    "DRAIN",
    "FAIL",
    "MAINT",
    "NOT_RESPONDING",
    "REBOOT",
    "INVAL",
    "UNKNOWN",
    "FUTURE",
    "POWERING_DOWN",
)
"""Parts of a node's state in which it starts no job; of RESERVED it depends on the job."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job that waits or runs. `number` is its id, or its array's, and `tasks` which elements it is, as they are
    printed ("" = none); `elements` is how many. `gpus` is what one asks for or has, of `gpu_types` ("" = of any)."""

    number: str
    tasks: str
    pending: bool
    partitions: tuple[str, ...]
    priority: int
    user: str
    reason: str
    start: float | None
    end: float | None
    nodes: int
    limit_s: int | None
    qos: str
    account: str
    reservation: str
    dependency: str
    submitted: float | None
    gpus: int
    gpu_types: tuple[str, ...]
    licenses: str
    elements: int = 1

    def is_job(self, native: NativeId) -> bool:
        """Whether it is this job, or this one is among its elements."""
        if self.number != native.job or bool(self.tasks) != (native.task is not None):
            return False
        return native.task is None or any(int(native.task) in one for one in _ranges(self.tasks))


def parse_live(text: str) -> list[LiveJob]:
    """The answer to :func:`ffdl_slurm.waiting_commands.live_argv`. Raises Garbled."""
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.startswith(f"JOBID{SEPARATOR}STATE{SEPARATOR}")), None)
    if start is None:
        raise Garbled(f"squeue printed no header but {begin(text)!r}")
    if not text.endswith("\n"):
        raise Garbled("squeue ended in the middle of a line")
    return [_live(line) for line in lines[start + 1 :] if line.strip()]


def _live(line: str) -> LiveJob:
    fields = line.split(SEPARATOR, _COLUMNS - 1)
    if len(fields) < _COLUMNS:
        raise Garbled(f"squeue printed {begin(line)!r} among its rows")
    row = dict(zip((*LIVE_FIELDS, "Name"), map(str.strip, fields), strict=True))
    number, _, tasks = row["JobArrayID"].partition("_")
    nodes = int(re.match(r"\d*", row["NumNodes"])[0] or 1)  # type: ignore[index]  # an empty match is one
    gpus, gpu_types = gpus_of(row, nodes)
    word, meaning = interpret_state(row["State"])
    pending = meaning.phase is Phase.PENDING
    return LiveJob(
        number=number,
        tasks=tasks,
        pending=pending,
        partitions=tuple(name for name in row["Partition"].split(",") if name),
        priority=int(row["PriorityLong"]) if row["PriorityLong"].isdigit() else 0,
        user=row["UserName"],
        reason=_PREPARED if word in _HAS_NODES else row["Reason"],
        start=parse_time(row["StartTime"]),
        end=parse_time(row["EndTime"]),
        nodes=nodes,
        limit_s=_limit(row["TimeLimit"]),
        qos=_absent(row["QOS"]),
        account=_absent(row["Account"]),
        reservation=_absent(row["Reservation"]),
        dependency=_absent(row["Dependency"]),
        submitted=parse_time(row["SubmitTime"]),
        gpus=gpus,
        gpu_types=gpu_types,
        licenses=_absent(row["Licenses"]),
        elements=max(1, sum(map(len, _ranges(tasks)))),
    )


def _ranges(tasks: str) -> list[range]:
    """The elements that ``[0-9:3,12%2]`` or ``7`` names."""
    found = []
    for part in tasks.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is not None:
            found.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    return found


def _limit(text: str) -> int | None:
    try:
        return parse_time_limit(text)
    except ValueError:  # UNLIMITED, NOT_SET, Partition_Limit
        return None


def _absent(text: str) -> str:
    return "" if text.strip() in _ABSENT else text.strip()


def fields_of(line: str) -> dict[str, str]:
    """``Key=value`` pairs of a line; values may hold blanks."""
    found: dict[str, str] = {}
    matches = list(_KEY.finditer(line))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        end = following.start() if following is not None else len(line)
        found.setdefault(match[1], line[match.end() : end].strip())
    return found


def _records(text: str, key: str, command: str) -> list[dict[str, str]]:
    """The lines that begin with `key`. Raises Garbled where an answer has none and does not say so."""
    lines = [line for line in text.split("\n") if line.startswith(f"{key}=")]
    if not lines and not re.search(r"^No \w+ in the system", text, re.MULTILINE):
        raise Garbled(f"{command} printed no {key} but {begin(text)!r}")
    return [fields_of(line) for line in lines]


@dataclass(frozen=True, slots=True)
class NodeNow:
    """A node at this moment. `gpus` maps a type to how many it has, `gpus_used` to how many are given away."""

    name: str
    state: str
    partitions: tuple[str, ...]
    cpus_free: int
    memory_free_mib: int
    gpus: Mapping[str, int]
    gpus_used: Mapping[str, int]
    features: tuple[str, ...] = ()
    why: str = ""
    reservation: str = ""

    @property
    def takes_jobs(self) -> bool:
        """Whether it may be given a job now."""
        return not any(word in self.state for word in _TAKES_NONE)

    def is_kept_from(self, reservation: str) -> bool:
        """Whether all of it is another reservation's than those that a request names ("" = none). Releases that do not
        say whose it is are believed to mean the request's."""
        if "RESERVED" not in self.state:
            return False
        named = reservation.split(",") if reservation else []
        return not named or bool(self.reservation and self.reservation not in named)

    def free_gpus(self, gpu_type: str) -> int:
        """Of a type, "" = of all. Which are used may be told by types where the node's own line has none."""
        used = self.gpus_used.get(gpu_type, 0) if gpu_type else sum(self.gpus_used.values())
        return max(0, self.all_gpus(gpu_type) - used)

    def all_gpus(self, gpu_type: str) -> int:
        """How many it has of them."""
        return self.gpus.get(gpu_type, 0) if gpu_type else sum(self.gpus.values())


def parse_nodes(text: str) -> list[NodeNow]:
    """The answer to :func:`ffdl_slurm.waiting_commands.nodes_argv`. Raises Garbled, ValueError."""
    return [_node(record) for record in _records(text, "NodeName", "scontrol")]


def _node(record: Mapping[str, str]) -> NodeNow:
    total = int(record.get("CPUEfctv") or record.get("CPUTot") or 0)
    return NodeNow(
        name=record["NodeName"],
        state=record.get("State", "UNKNOWN").upper(),
        partitions=tuple(_absent(record.get("Partitions", "")).split(",")),
        cpus_free=max(0, total - int(record.get("CPUAlloc") or 0)),
        memory_free_mib=max(0, int(record.get("RealMemory") or 0) - int(record.get("AllocMem") or 0)),
        gpus=parse_gpus(_absent(record.get("Gres", ""))),
        gpus_used=parse_gpus(_absent(record.get("GresUsed", ""))),
        features=tuple(filter(None, _absent(record.get("ActiveFeatures", "")).split(","))),
        why=re.sub(r"\s*\[[^\]]*\]$", "", _absent(record.get("Reason", ""))),
        reservation=_absent(record.get("ReservationName", "")),
    )


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """A partition at this moment."""

    name: str
    state: str
    is_default: bool
    max_time: str
    max_nodes: str
    tier: str
    accounts: str = ""
    qos: str = ""


def parse_partitions(text: str) -> list[PartitionNow]:
    """The answer to :func:`ffdl_slurm.waiting_commands.partitions_argv`. Raises Garbled."""
    return [
        PartitionNow(
            name=record["PartitionName"],
            state=record.get("State", "").upper(),
            is_default=record.get("Default") == "YES",
            max_time=_unbounded(record.get("MaxTime", "")),
            max_nodes=_unbounded(record.get("MaxNodes", "")),
            tier=record.get("PriorityTier", ""),
            accounts=_everybody(record.get("AllowAccounts", "")),
            qos=_everybody(record.get("AllowQos", "")),
        )
        for record in _records(text, "PartitionName", "scontrol")
    ]


def _unbounded(text: str) -> str:
    return "" if text in ("UNLIMITED", "INFINITE") else _absent(text)


def _everybody(text: str) -> str:
    return "" if text == "ALL" else _absent(text)


@dataclass(frozen=True, slots=True)
class ReservationNow:
    """A reservation: of which nodes, and when."""

    name: str
    nodes: str
    begins: float | None
    ends: float | None
    flags: tuple[str, ...] = ()

    def as_blocker(self) -> Blocker:
        """For who meets it."""
        what = "maintenance" if "MAINT" in self.flags else "reservation"
        count = count_nodes(self.nodes) if self.nodes else 0
        return Blocker(BlockerKind.RESERVATION, self.name, f"{what} of {self.nodes or 'no'} ({count} nodes)",
                       self.begins, self.ends)  # fmt: skip


def parse_reservations(text: str) -> list[ReservationNow]:
    """The answer to :func:`ffdl_slurm.waiting_commands.reservations_argv`. Raises Garbled."""
    return [
        ReservationNow(
            name=record["ReservationName"],
            nodes=_absent(record.get("Nodes", "")),
            begins=parse_time(record.get("StartTime", "")),
            ends=parse_time(record.get("EndTime", "")),
            flags=tuple(filter(None, _absent(record.get("Flags", "")).split(","))),
        )
        for record in _records(text, "ReservationName", "scontrol")
    ]


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """What the association manager knows of a QOS (`qos`) or of an association (`account`, and `user` "" = the whole
    account): its limits as printed, and those of each user and account within a QOS."""

    qos: str = ""
    account: str = ""
    user: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    accounts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def parse_limits(text: str) -> list[LimitRecord]:
    """The answer to :func:`ffdl_slurm.waiting_commands.limits_argv`. Raises Garbled."""
    if "Association" not in text and "QOS Records" not in text:
        raise Garbled(f"scontrol printed no limits but {begin(text)!r}")
    found = []
    for line in text.split("\n"):
        if line.startswith("QOS="):
            own, _, rest = line.partition(" Account Limits=")
            accounts, _, users = rest.partition(" User Limits=")
            values = fields_of(own)
            name = re.sub(r"\(\d+\)$", "", values.pop("QOS"))
            found.append(LimitRecord(qos=name, values=values, users=_blocks(users), accounts=_blocks(accounts)))
        elif line.startswith("ClusterName="):
            values = fields_of(line)
            user = re.sub(r"\(\d+\)$", "", values.get("UserName", ""))
            found.append(LimitRecord(account=values.get("Account", ""), user=user, values=values))
    return found


def _blocks(text: str) -> dict[str, dict[str, str]]:
    """``name(uid)={Key=value ...}`` by name; by uid where there is no name (before 21.08)."""
    found = re.findall(r"(\S+?)=\{([^}]*)\}", text)
    return {re.sub(r"\(\d+\)$", "", name): fields_of(values) for name, values in found}


def parse_factors(text: str) -> dict[str, tuple[float, tuple[Factor, ...]]]:
    """Job → priority and its parts that are not 0, of :func:`ffdl_slurm.waiting_commands.factors_argv`; empty where the
    site weighs nothing. Raises Garbled."""
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if line.strip().startswith("JOBID|")), None)
    if start is None:
        raise Garbled(f"sprio printed no header but {begin(text)!r}")
    names = [name.strip() for name in lines[start].split(SEPARATOR)]
    found: dict[str, tuple[float, tuple[Factor, ...]]] = {}
    for line in lines[start + 1 :]:
        values = [value.strip() for value in line.split(SEPARATOR)]
        if len(values) < len(names):
            continue
        row = dict(zip(names, values, strict=False))
        parts = [Factor(name.lower(), value) for name in FACTORS.values() if (value := _number(row.get(name, "")))]
        priority = next((part.value for part in parts if part.name == "priority"), 0.0)
        found.setdefault(row["JOBID"], (priority, tuple(part for part in parts if part.name != "priority")))
    return found


def _number(text: str) -> float:
    """Of ``1200``, or the sum of ``cpu=10,gres/gpu=20``."""
    return sum(float(number) for number in re.findall(r"(?:^|=)(-?\d+(?:\.\d+)?)(?=,|$)", text))

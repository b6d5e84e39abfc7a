"""What the commands of :mod:`ffdl_slurm.pending.commands` print, as typed values. Pure.

An answer without what it has to have is :class:`ffdl_slurm.observing.parsers.Garbled`. Text of users (reasons of
drained nodes, comments) stands behind what is read of a line: the first value of a key counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.domain.pending.explanation import Blocker, BlockerKind, Factor, Foretold
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.commands import SEPARATOR
from ffdl_slurm.observing.parsers import Garbled, count_nodes, parse_gpus, parse_time
from ffdl_slurm.output_text import begin
from ffdl_slurm.pending.commands import FACTORS

_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w/()]*)=")
_ABSENT = frozenset({"", "(null)", "N/A", "None", "n/a"})
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


def absent(text: str) -> str:
    """ "" for Slurm's words for nothing."""
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
    """Return the lines that begin with `key`. Raises Garbled if there are none, and the output does not say so."""
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
        """Return whether the node is reserved by another reservation than those of a request ("" = none). If a release
        does not name the reservation, it counts as that of the request."""
        if "RESERVED" not in self.state:
            return False
        named = reservation.split(",") if reservation else []
        return not named or bool(self.reservation and self.reservation not in named)

    def free_gpus(self, gpu_type: str) -> int:
        """Return the free GPUs of a type ("" = all). If the node's own line has no types, those in use may have
        types."""
        used = self.gpus_used.get(gpu_type, 0) if gpu_type else sum(self.gpus_used.values())
        return max(0, self.all_gpus(gpu_type) - used)

    def all_gpus(self, gpu_type: str) -> int:
        """Return the GPUs of a type ("" = all)."""
        return self.gpus.get(gpu_type, 0) if gpu_type else sum(self.gpus.values())


def parse_nodes(text: str) -> list[NodeNow]:
    """Parse the output of :func:`ffdl_slurm.pending.commands.nodes_argv`. Raises Garbled, ValueError."""
    return [_node(record) for record in _records(text, "NodeName", "scontrol")]


def _node(record: Mapping[str, str]) -> NodeNow:
    total = int(record.get("CPUEfctv") or record.get("CPUTot") or 0)
    return NodeNow(
        name=record["NodeName"],
        state=record.get("State", "UNKNOWN").upper(),
        partitions=tuple(absent(record.get("Partitions", "")).split(",")),
        cpus_free=max(0, total - int(record.get("CPUAlloc") or 0)),
        memory_free_mib=max(0, int(record.get("RealMemory") or 0) - int(record.get("AllocMem") or 0)),
        gpus=parse_gpus(absent(record.get("Gres", ""))),
        gpus_used=parse_gpus(absent(record.get("GresUsed", ""))),
        features=tuple(filter(None, absent(record.get("ActiveFeatures", "")).split(","))),
        why=re.sub(r"\s*\[[^\]]*\]$", "", absent(record.get("Reason", ""))),
        reservation=absent(record.get("ReservationName", "")),
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
    """Parse the output of :func:`ffdl_slurm.pending.commands.partitions_argv`. Raises Garbled."""
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
    return "" if text in ("UNLIMITED", "INFINITE") else absent(text)


def _everybody(text: str) -> str:
    return "" if text == "ALL" else absent(text)


@dataclass(frozen=True, slots=True)
class ReservationNow:
    """A reservation: its nodes, and its times."""

    name: str
    nodes: str
    begins: float | None
    ends: float | None
    flags: tuple[str, ...] = ()

    def as_blocker(self) -> Blocker:
        """Return the reservation as a blocker of a job."""
        what = "maintenance" if "MAINT" in self.flags else "reservation"
        count = count_nodes(self.nodes) if self.nodes else 0
        return Blocker(BlockerKind.RESERVATION, self.name, f"{what} of {self.nodes or 'no'} ({count} nodes)",
                       self.begins, self.ends)  # fmt: skip


def parse_reservations(text: str) -> list[ReservationNow]:
    """Parse the output of :func:`ffdl_slurm.pending.commands.reservations_argv`. Raises Garbled."""
    return [
        ReservationNow(
            name=record["ReservationName"],
            nodes=absent(record.get("Nodes", "")),
            begins=parse_time(record.get("StartTime", "")),
            ends=parse_time(record.get("EndTime", "")),
            flags=tuple(filter(None, absent(record.get("Flags", "")).split(","))),
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
    """Parse the output of :func:`ffdl_slurm.pending.commands.limits_argv`. Raises Garbled."""
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
    """Job → priority and its parts that are not 0, of :func:`ffdl_slurm.pending.commands.factors_argv`; empty where the
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
    """Return a number such as ``1200``, or the sum of ``cpu=10,gres/gpu=20``."""
    return sum(float(number) for number in re.findall(r"(?:^|=)(-?\d+(?:\.\d+)?)(?=,|$)", text))


_TRIAL = re.compile(r"to start at (\S+)(?: [ap])? using .*? on nodes? (\S+)", re.IGNORECASE)
_PREEMPTS = re.compile(r"Preempts: (\S+)")


def parse_trial(text: str) -> Foretold:
    """Parse the output of ``sbatch --test-only``, with times of the local zone. 26.05 adds ``a`` or ``p``."""
    match, ends = _TRIAL.search(text), _PREEMPTS.search(text)
    said = " ".join(text.replace("sbatch: ", "").split())
    if match is None:
        return Foretold(said)
    return Foretold(said, parse_time(match[1]), match[2], len(ends[1].split(",")) if ends else 0)

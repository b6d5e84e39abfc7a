"""Read the evidence that the jobs of the proof left: logs, Slurm's accounting and listings, the scaler's decisions."""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass
from tests.proof.chain import until
from tests.proof.desk import Desk
from tests.proof.elastic.jobs import Job

Gpu = tuple[str, int]
"""A node, and the number of a GPU on it."""
ACCOUNTING_S = 60.0
"""How long the accounting may take to record the last ends."""
_SACCT = ("sacct", "-X", "-D", "--noheader", "--parsable2", "--format=JobID,JobName,Start,End,AllocTRES")
_SCONTROL = ("scontrol", "--details", "--oneliner", "show", "job")
_PLACE = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_NUMBERS = re.compile(r"\bgpu:[^(,]*\(IDX:([0-9,-]+)\)")


@dataclass(frozen=True, slots=True)
class Session:
    """One start of the first learner, until its end."""

    attempt: int
    after: int
    """Number of samples after which it began."""
    saved: int
    """Number of samples in its last checkpoint."""
    saving: int
    """Number of samples in the last checkpoint that it began to write."""
    gpus: int
    batch: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation in Slurm's accounting. Times are seconds since the epoch."""

    attempt: int
    native: str
    start: float
    end: float
    gpus: int
    places: frozenset[Gpu] = frozenset()
    """The GPUs, as Slurm listed them while the allocation lasted."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The evidence about a job."""

    job: Job
    samples: int
    state: str
    submitted: float
    ended: float
    sessions: tuple[Session, ...]
    allocations: tuple[Allocation, ...]
    loss: float | None
    stopped: frozenset[int] = frozenset()
    """Attempts that the scaler ended to let the job wait."""
    why: str = ""
    """Error code and message of the job."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node without power, until Slurm uses it again."""

    node: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Course:
    """One run of all jobs."""

    trained: tuple[Trained, ...]
    outages: tuple[Outage, ...] = ()
    kills: int = 0
    """Number of kills of the daemon."""
    decisions: tuple[tuple[str, str], ...] = ()
    """Inputs and targets of the scaler's decisions, as JSON."""


class Places:
    """Collects which GPUs Slurm allocates. Slurm does not list the GPUs of jobs that have ended."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._known: dict[tuple[str, str], frozenset[Gpu]] = {}

    def look(self) -> None:
        """Ask Slurm once."""
        for line in self._desk.run(*_SCONTROL, check=False).stdout.splitlines():
            words = dict(word.partition("=")[::2] for word in line.split())
            if places := frozenset(_places(line)):
                self._known[words["JobId"], words["StartTime"]] = places

    def of(self, native: str, start: str) -> frozenset[Gpu]:
        """Return the GPUs of an allocation by its id and its start, as Slurm spells it."""
        return self._known.get((native, start), frozenset())

    def used_nodes(self) -> set[str]:
        """Return the nodes of all allocations so far."""
        return {node for places in self._known.values() for node, _ in places}


def _places(line: str) -> Iterator[Gpu]:
    for nodes, gres in _PLACE.findall(line):
        for numbers in _NUMBERS.findall(gres):
            for node in expand(nodes):
                yield from ((node, int(number)) for number in expand(f"[{numbers}]"))


def expand(names: str) -> list[str]:
    """Return the names in a host list with at most one bracket, such as n[1-2,4]."""
    prefix, _, ranges = names.partition("[")
    if not ranges:
        return names.split(",")
    found = []
    for part in ranges.rstrip("]").split(","):
        first, _, last = part.partition("-")
        found += [f"{prefix}{number}" for number in range(int(first), int(last or first) + 1)]
    return found


def collect(desk: Desk, ids: Mapping[str, str], samples: Mapping[Job, int], places: Places) -> tuple[Trained, ...]:
    """Return the evidence about the jobs. `ids` are by name."""
    listed = {one["id"]: one for one in desk.jobs()}
    allocations = _allocations(desk, places)
    return tuple(
        Trained(
            job,
            samples[job],
            listed[job_id]["state"],
            listed[job_id]["submitted_at"],
            listed[job_id]["ended_at"] or 0.0,
            tuple(_sessions(_logs(desk, job_id))),
            tuple(one for token, one in allocations if token.rpartition("-")[0] == job_id),
            _loss(_logs(desk, job_id)),
            _stopped(desk, job_id),
            f"{listed[job_id]['error_code']} {listed[job_id]['message']}",
        )
        for job in samples
        for job_id in (ids[job.name],)
    )


def _logs(desk: Desk, job_id: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers of the attempts, and the lines of their first learners."""
    directory = desk.host_path(f"{desk.base}/jobs/jobs/{job_id}")
    names = (path.name.removeprefix("attempt-") for path in directory.glob("attempt-*"))
    for number in sorted(int(name) for name in names if name.isdigit()):
        log = directory / f"attempt-{number}" / "logs" / "learner-1" / "training-log.txt"
        if log.exists():
            yield number, log.read_text(encoding="utf-8").splitlines()


def _sessions(logs: Iterable[tuple[int, list[str]]]) -> Iterator[Session]:
    for number, lines in logs:
        begun: dict[str, int] = {}
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "session":
                if begun:
                    yield Session(number, **begun)
                given = json.loads(rest)
                begun = {name: given[name] for name in ("after", "gpus", "batch")}
                begun |= {"saved": given["after"], "saving": given["after"]}
            elif word in ("saving", "saved"):
                begun[word] = int(rest)
        if begun:
            yield Session(number, **begun)


def _loss(logs: Iterable[tuple[int, list[str]]]) -> float | None:
    found = [line for _, lines in logs for line in lines if line.startswith("loss ")]
    return float(found[-1].split()[1]) if found else None


def _stopped(desk: Desk, job_id: str) -> frozenset[int]:
    events = [json.loads(line)["event"] for line in desk.run("ffdl", "events", "--json", job_id).stdout.splitlines()]
    return frozenset(one["attempt"] for one in events if "gave its GPUs to other jobs" in (one.get("message") or ""))


def _allocations(desk: Desk, places: Places) -> list[tuple[str, Allocation]]:
    """Return the names and the data of all allocations of the user, when all of them have ended."""
    rows: list[list[str]] = []

    def ended() -> bool:
        rows[:] = [line.split("|") for line in desk.run(*_SACCT).stdout.splitlines()]
        return all(end[:1].isdigit() for _, _, start, end, _ in rows if start[:1].isdigit())

    until(ended, "the accounting to know the ends of all allocations", ACCOUNTING_S, every_s=1.0)
    found = []
    for native, token, start, end, tres in rows:
        gpus = next((int(one.split("=")[1]) for one in tres.split(",") if one.startswith("gres/gpu=")), 0)
        number = token.rpartition("-")[2]
        if start[:1].isdigit() and number.isdigit():
            begin, end_s = (datetime.fromisoformat(text).astimezone().timestamp() for text in (start, end))
            found.append((token, Allocation(int(number), native, begin, end_s, gpus, places.of(native, start))))
    return found


def decisions(state: Path) -> tuple[tuple[str, str], ...]:
    """Return the recorded decisions of the database in a state directory."""
    with closing(sqlite3.connect(f"file:{state / 'ffdl.sqlite3'}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT inputs, targets FROM elastic_decisions ORDER BY at").fetchall()
    return tuple((_text(inputs), _text(targets)) for inputs, targets in rows)


def _text(stored: str) -> str:
    """Return the JSON of a column, which may be compressed."""
    return stored if stored[:1] in "[{" else zlib.decompress(b64decode(stored)).decode()

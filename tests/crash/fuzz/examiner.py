"""Reads a world and has it judged: a process of its own, with its own read-only way into the database.

Only what changed since the last look is read. The connection is closed after each look: the next daemon must find what
the one before left, not what an open reader kept alive.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, Double, Engine, NullPool, create_engine, event, func, make_url, select, type_coerce

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import Settings
from ffdl_batch.daemon.platform import open_platform
from ffdl_batch.domain.job.job import HistoryEntry, JobId
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.job_files.orphan_cleanup import ARCHIVE_AGE_S, ORPHAN_AGE_S, sweep
from ffdl_batch.store.queries import histories
from ffdl_batch.store.schema import ATTEMPTS, JOBS, LEASES
from tests.crash.fuzz.cluster import AGAIN
from tests.crash.fuzz.companions import Message, read_line, send_line
from tests.crash.fuzz.diary import DiaryReader
from tests.crash.fuzz.heads import RECORD, RESULT
from tests.crash.fuzz.judge import (
    AttemptRow,
    Findings,
    JobFacts,
    Row,
    judge_array,
    judge_end,
    judge_job,
    judge_lease,
    judge_request,
)
from tests.crash.fuzz.remote import stored

_ROW = (
    *(getattr(JOBS.c, name) for name in Row.__slots__ if name not in ("array", "spent")), JOBS.c.array_id, JOBS.c.spent,
)  # fmt: skip
_ATTEMPT = (
    ATTEMPTS.c.number, ATTEMPTS.c.interruption, ATTEMPTS.c.outcome_code, ATTEMPTS.c.simulated,
    ATTEMPTS.c.upload_pending, ATTEMPTS.c.ended_at,
)  # fmt: skip
_UPLOAD_PENDING = select(ATTEMPTS.c.job_id, ATTEMPTS.c.number).where(ATTEMPTS.c.upload_pending != 0)
HALF_MADE = re.compile(r"\.(?!began-|ended-|uploading|tree$|log-copy-complete$)|.+\.tmp$")
"""Names under which something is written before it is renamed; the exceptions are hidden for other reasons."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look read of the database: all rows, and of those that changed the rest."""

    now: float
    rows: Mapping[str, Row]
    histories: Mapping[JobId, Sequence[HistoryEntry]]
    attempts: Mapping[str, Sequence[AttemptRow]]
    leases: Sequence[tuple[str, str, str]]
    """Named ones that are not over: name, owner, token."""
    pending_uploads: frozenset[tuple[str, int]]
    """Attempts that owe something."""


class Examiner:
    """Looks at one world: `base` holds its diary, `settings` are its daemons'."""

    def __init__(self, base: Path, settings: Settings) -> None:
        self._base, self._settings = base, settings
        self._diary = DiaryReader(base / "diary")
        self._root = Root(settings.jobs_dir)
        self._engine = _engine(settings.database)
        self._revisions: dict[str, int] = {}
        self._arrays: dict[str, int] = {}
        self._pending_uploads: frozenset[tuple[str, int]] = frozenset()
        self._tokens: frozenset[str] = frozenset()
        self._found = Findings()
        self._told: set[str] = set()

    def serve(self, parent: socket.socket) -> None:
        """Until the parent is gone."""
        while (order := read_line(parent)) is not None:
            if "count" in order:
                send_line(parent, {"pending_uploads": self._count_pending_uploads()})
                continue
            if order["final"]:
                self._look_at_the_end()
            else:
                self._look()
            send_line(parent, self._answer())

    def _answer(self) -> Message:
        sentences = self._found.sentences()
        new = [text for text in sentences if text not in self._told]
        self._told.update(new)
        promises = self._diary.promises
        asked = Counter(verb for verbs in promises.asked.values() for verb in verbs)
        return {
            "counts": self._found.counts(), "new": new, "jobs": len(self._revisions), "arrays": len(self._arrays),
            "asked": asked,
        }  # fmt: skip

    def _look(self) -> None:
        """What must hold at every moment, of all that changed since the last look."""
        promises = self._diary.read()
        acknowledged, requests, resumed = (
            list(promises.acknowledged),
            dict(promises.requests),
            Counter(promises.resumed),
        )
        asked_back = Counter(promises.asked_back)
        strangers = {name: _executions(self._root, name) for name in self._directories() - self._revisions.keys()}
        seen = self._read()
        promises = self._diary.read()
        found = self._found
        found.wrong_answers.update(promises.faults)
        for job_id in acknowledged:
            if job_id not in seen.rows:
                found.lost.add(f"{job_id}: it was acknowledged, and the database does not have it")
        for job_id in strangers.keys() - seen.rows.keys():
            judge_job(JobFacts(job_id, None, executions=strangers[job_id]), resumed[job_id], found)
        for job_id in seen.histories:
            judge_job(self._facts(seen, job_id), resumed[job_id], found)
        for row in seen.rows.values():
            if asked_back[row.id] == promises.asked_back[row.id]:  # else another request may be there, of the same name
                judge_request(row, requests.get(row.id), promises.requests.get(row.id), found)
        self._look_at_leases(seen)
        self._look_at_arrays(seen)
        self._pending_uploads = seen.pending_uploads
        found.sent_again.update(self._sent_again())
        self._revisions = {row.id: row.revision for row in seen.rows.values()}

    def _look_at_leases(self, seen: Seen) -> None:
        for row in seen.rows.values():
            judge_lease(row, self._settings.state_dir, seen.now, self._tokens, self._found)
        for name, owner, token in seen.leases:
            if token in self._tokens or not owner.endswith(self._settings.state_dir):
                self._found.lease_faults.add(f"the lease {name!r} is held by {owner}, in a life that is over")
        held = {row.lease_token for row in seen.rows.values() if row.lease_until > seen.now}
        self._tokens = frozenset({*held, *(token for _, _, token in seen.leases)} - {""})

    def _look_at_arrays(self, seen: Seen) -> None:
        rows = Counter(row.array for row in seen.rows.values() if row.array)
        for array in rows.keys() - self._arrays.keys():
            member = next(row.id for row in seen.rows.values() if row.array == array)
            self._arrays[array] = self._count_jobs(member)
        for array, count in rows.items():
            judge_array(array, count, self._arrays[array], self._found)

    def _sent_again(self) -> Iterator[str]:
        path = self._base / AGAIN
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for token, count in Counter(lines).items():
            yield f"{token}: the cluster had it, and was asked for it {count} times more"

    def _look_at_the_end(self) -> None:
        """What must hold when all work is done, uploads are done and the last daemon has ended by itself."""
        self._revisions = {}
        self._look()
        seen, promises = self._read(), self._diary.read()
        acknowledged = frozenset(promises.acknowledged)
        for job_id in seen.rows.keys() | self._directories():
            judge_end(self._facts(seen, job_id), promises, acknowledged, self._found)
        for job_id, number in seen.pending_uploads:
            self._found.lost.add(f"{job_id}: attempt {number} still has a pending upload")
        for what in [f"job {row.id}" for row in seen.rows.values() if row.lease_token]:
            self._found.lease_faults.add(f"{what} is leased after the end")
        for name, owner, _ in seen.leases:
            self._found.lease_faults.add(f"the lease {name!r} of {owner} is left after the end")
        self._found.left_behind.update(self._leftovers(seen.rows.keys()))

    def _facts(self, seen: Seen, job_id: str) -> JobFacts:
        return JobFacts(
            job_id, seen.rows.get(job_id), seen.histories.get(JobId(job_id), ()), seen.attempts.get(job_id, ()),
            _executions(self._root, job_id), self._unstored(job_id),
        )  # fmt: skip

    def _unstored(self, job_id: str) -> dict[int, list[str]]:
        """Results that are not in the store, by attempt."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for path in Path(self._root.job(job_id).path).glob(f"attempt-[0-9]*/results/{RESULT}*"):
            if not (stored(self._base) / job_id / path.name).exists():
                found[int(path.parts[-3].rpartition("-")[2])].append(path.name)
        return found

    # ----------------------------------------------------------------------------------------- the database

    def _read(self) -> Seen:
        with self._engine.connect() as connection, connection.begin():
            rows = {row.id: row for row in _rows(connection)}
            pending = frozenset((job_id, number) for job_id, number in connection.execute(_UPLOAD_PENDING))
            done = {job_id for job_id, _ in self._pending_uploads - pending}  # which is no change of a row
            changed = [row.id for row in rows.values() if self._revisions.get(row.id) != row.revision or row.id in done]
            now = _now(connection)
            leases = select(LEASES.c.name, LEASES.c.owner, LEASES.c.token).where(LEASES.c.until > now)
            return Seen(
                now, rows, histories(connection, changed), _attempts(connection, changed),
                [(name, owner, token) for name, owner, token in connection.execute(leases)],
                pending,
            )  # fmt: skip

    def _count_pending_uploads(self) -> int:
        with self._engine.connect() as connection, connection.begin():
            return int(connection.execute(select(func.count()).where(ATTEMPTS.c.upload_pending != 0)).scalar_one())

    def _count_jobs(self, job_id: str) -> int:
        """How many jobs the array of `job_id` has, by its spec."""
        with self._engine.connect() as connection, connection.begin():
            spec = connection.execute(select(JOBS.c.spec).where(JOBS.c.id == job_id)).scalar_one()
        return int(json.loads(spec)["element"]["count"])

    # ------------------------------------------------------------------------------------------- the files

    def _directories(self) -> set[str]:
        return {path.name for path in Path(self._root.path, "jobs").glob("training-*")}

    def _leftovers(self, known: Collection[str]) -> Iterator[str]:
        """What is still there after the janitor has come, a long time later."""
        trees = {Path(self._settings.state_dir), Path(self._settings.jobs_dir), stored(self._base)}
        at = time.time() - 2 * max(ARCHIVE_AGE_S, ORPHAN_AGE_S)
        places = [Path(self._root.path, "jobs"), Path(self._root.models), Path(self._root.arrays)]
        aged = [*(path for place in places if place.is_dir() for path in place.iterdir()), *_half_made(trees)]
        for path in aged:
            os.utime(path, (at, at))
        platform = open_platform(self._settings)
        try:
            sweep(platform.storage, platform.settings)
        finally:
            platform.close()
        for name in self._directories() - set(known):
            yield f"the directory of {name}, which is no job"
        arrays = {path.name for path in Path(self._root.arrays).glob("array-*")}
        for name in arrays - self._arrays.keys():
            yield f"the directory of {name}, which is no array"
        for path in _half_made(trees):
            yield str(path)


def _half_made(trees: Collection[Path]) -> set[Path]:
    return {path for tree in trees for path in tree.rglob("*") if HALF_MADE.match(path.name)}


def _engine(url: str) -> Engine:
    """Opens it again for each look, and sees one state of the database in each.

    A reader of SQLite writes nothing: whoever closes a database last would fold its log away.
    """
    if not url.startswith("sqlite"):
        return create_engine(url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    place = f"file:{make_url(url).database}?mode=ro"
    engine = create_engine(
        "sqlite://", poolclass=NullPool, creator=lambda: sqlite3.connect(place, uri=True, isolation_level=None)
    )  # fmt: skip

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _now(connection: Connection) -> float:
    """By the clock that leases are measured with."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(
        connection.execute(select(type_coerce(func.date_part("epoch", func.clock_timestamp()), Double))).scalar_one()
    )


def _rows(connection: Connection) -> Iterator[Row]:
    for values in connection.execute(select(*_ROW)):
        row = Row(*values)
        yield replace(row, state=JobState(row.state), spent=json.loads(values[-1]))


def _attempts(connection: Connection, ids: Collection[str]) -> dict[str, list[AttemptRow]]:
    found: defaultdict[str, list[AttemptRow]] = defaultdict(list)
    query = select(ATTEMPTS.c.job_id, *_ATTEMPT)
    for job_id, *values in connection.execute(query.where(ATTEMPTS.c.job_id.in_(ids)).order_by(ATTEMPTS.c.number)):
        number, why, code, simulated, upload_pending, ended_at = values
        found[job_id].append(AttemptRow(number, why, code, bool(simulated), bool(upload_pending), ended_at is not None))
    return found


def _executions(root: Root, job_id: str) -> dict[int, Counter[int]]:
    """What the job's learners wrote, by attempt and run."""
    found = {}
    for path in Path(root.job(job_id).path).glob(f"attempt-*/state/{RECORD}"):
        number = int(path.parts[-3].rpartition("-")[2])
        found[number] = Counter(int(line.split()[0]) for line in path.read_text(encoding="utf-8").splitlines())
    return found

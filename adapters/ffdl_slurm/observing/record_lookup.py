"""Find the records of jobs and tasks in a listing, and the attempts of tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.array import parse_chunk_name
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId, Phase
from ffdl_slurm.native_array import read_table
from ffdl_slurm.observing.parsers import JobRecord

_KEPT = 256
"""Tables in memory; each has some thousand lines at most."""


def pick(records: Sequence[JobRecord], ids: Collection[NativeId], *, whole: bool = True) -> dict[NativeId, JobRecord]:
    """Return the records of `ids`. `whole` is false if the listing has rows that could not be read.

    A record of one task wins over one of a range. Waiting tasks that were cancelled may be one record with the array's
    id and without their numbers (seen on 26.05). That record is about all tasks that no other record names.
    """
    singles = {record.native: record for record in records}
    found = {native: singles[native] for native in ids if native in singles}
    if len(found) == len(ids):
        return found
    tasks: dict[str, list[str]] = {}
    for native in ids:
        if native.task is not None and native not in found:
            tasks.setdefault(native.job, []).append(native.task)
    for record in records:
        if record.native is None:
            found.update((native, record) for native in record.native_ids(tasks.get(record.job, ())))
    for record in records if whole else ():
        if record.tasks is None and record.observation.phase is Phase.ENDED:
            for task in tasks.get(record.job, ()):
                found.setdefault(NativeId(record.job, task), record)
    return found


class Listing:
    """Records by the names of their jobs."""

    def __init__(self, records: Sequence[JobRecord]) -> None:
        self._jobs: dict[str, set[NativeId]] = {}
        self._tasks: dict[tuple[str, str], set[NativeId]] = {}
        self._ranges: dict[str, list[JobRecord]] = {}
        for record in records:
            if record.native is None:
                self._ranges.setdefault(record.name, []).append(record)
            elif record.native.task is None:
                self._jobs.setdefault(record.name, set()).add(record.native)
            else:
                self._tasks.setdefault((record.name, record.native.task), set()).add(record.native)

    def jobs_named(self, name: str) -> set[NativeId]:
        """Return the jobs with this name that are no tasks of arrays."""
        return set(self._jobs.get(name, ()))

    def tasks_named(self, name: str, task: str) -> set[NativeId]:
        """Return the tasks with this number of arrays with this name. An array that ended while it waited has all of
        its tasks."""
        among = {native for record in self._ranges.get(name, ()) for native in record.native_ids([task])}
        whole = {NativeId(native.job, task) for native in self._jobs.get(name, ())}
        return among | whole | self._tasks.get((name, task), set())


class TaskTables:
    """The attempts of tasks of native arrays. A table does not change after its submission, so it is read once. Safe in
    every thread."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[str, Mapping[str, Token]] = {}

    def token_of(self, name: str, task: str | None) -> str:
        """Return the token of the attempt that is task `task` of the array `name`; `name` itself if it is not in an
        array, or if the array has no table any more."""
        if task is None:
            return name
        with self._lock:
            table = self._known.get(name)
        if table is None:
            named = parse_chunk_name(name)
            if named is None:
                return name
            try:
                table = read_table(Path(self._root.array(named[0]).chunk(named[1]).tasks).read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                return name
            with self._lock:
                if len(self._known) >= _KEPT:
                    self._known.clear()
                self._known[name] = table
        return table.get(task, name)


TokenOf = Callable[[str, str | None], str]


def dropped_tasks(records: Sequence[JobRecord], ids: Collection[NativeId], token_of: TokenOf) -> Mapping[NativeId, str]:
    """Return the tasks of `ids` that a complete listing omits although it has other records of their arrays, with the
    tokens of their attempts (`token_of`). Arrays whose list of tasks is cut off are left out."""
    seen = pick(records, ids)
    missing = {native for native in ids if native.task is not None and native not in seen}
    arrays: dict[str, list[JobRecord]] = {native.job: [] for native in missing}
    for record in records:
        if record.job in arrays:
            arrays[record.job].append(record)
    named = {job: found[0].name for job, found in arrays.items() if _is_whole(found)}
    return {native: token_of(named[native.job], native.task) for native in missing if native.job in named}


def _is_whole(records: Sequence[JobRecord]) -> bool:
    """Return whether an array is listed, and each record names its tasks."""
    are_named = all(record.tasks is not None and not record.is_cut for record in records)
    return are_named and len({record.name for record in records}) == 1

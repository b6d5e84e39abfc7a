"""What it means that a complete listing does not hold a task of a native array. Pure.

slurmctld takes a waiting task that is cancelled out of its array's list, and keeps no record of it; neither does the
accounting (`_signal_pending_job_array_tasks` in src/slurmctld/job_mgr.c, 20.11 to 26.05; seen on 26.05). Where it was
the last one of the list, the array's own record becomes CANCELLED, which
:func:`ffdl_slurm.observing.record_lookup.pick` knows. Tasks that started, were requeued or were changed one by one have
a record of their own, as long as slurmctld remembers them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_slurm.observing.parsers import JobRecord
from ffdl_slurm.observing.record_lookup import pick

TokenOf = Callable[[str, str | None], str]


def dropped_tasks(records: Sequence[JobRecord], ids: Collection[NativeId], token_of: TokenOf) -> Mapping[NativeId, str]:
    """Of `ids`, the tasks that a complete listing does not hold although it holds something else of their arrays, each
    with the attempt that it is by the name of that (`token_of`). None of an array whose list was cut off."""
    seen = pick(records, ids)
    missing = {native for native in ids if native.task is not None and native not in seen}
    arrays: dict[str, list[JobRecord]] = {native.job: [] for native in missing}
    for record in records:
        if record.job in arrays:
            arrays[record.job].append(record)
    named = {job: found[0].name for job, found in arrays.items() if _is_whole(found)}
    return {native: token_of(named[native.job], native.task) for native in missing if native.job in named}


def _is_whole(records: Sequence[JobRecord]) -> bool:
    """Whether something is listed of an array, and each record says which tasks it is about."""
    are_told = all(record.tasks is not None and not record.is_cut for record in records)
    return are_told and len({record.name for record in records}) == 1

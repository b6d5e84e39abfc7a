"""Removes directories of jobs and arrays.

A directory first gets a name that no job has, in one step, and is emptied afterwards. If the process is killed
meanwhile, the janitor removes the rest.

The directory had the claims of the job's attempts. If an older copy of the database is restored, in which the job still
waits or runs, nothing else would prevent a second execution. So the id of each removed job stays in a file of the tree.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from pathlib import Path

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import Change, Job, is_job_id
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.filesystem import find_mount_below
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.store import Store

log = logging.getLogger(__name__)

REMOVING = ".removing-"
"""Prefix of a directory that is being removed."""


def remove_directory(path: Path) -> bool:
    """Remove a directory; return False if it does not exist, or another daemon was faster. Raises OSError.

    A directory in which a file system is mounted stays, because the files there are those of a data store.
    """
    if mounted := find_mount_below(str(path)):
        raise OSError(errno.EBUSY, "a file system is mounted there", mounted)
    doomed = path.with_name(f"{REMOVING}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return False
    finish_removal(doomed)
    return True


def finish_removal(doomed: Path) -> bool:
    """Remove a renamed directory; return False if another daemon does. Raises OSError."""
    try:
        remove_tree(str(doomed))
    except FileNotFoundError:
        log.info("%s is being removed by another daemon, too", doomed)
        return False
    return True


def remove_job_directory(root: Root, job_id: str) -> bool:
    """Record that the job is removed, and remove its directory like :func:`remove_directory`. Raises OSError."""
    directory = Path(root.job(job_id).path)
    try:
        _note_removed(root, job_id)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        removed = remove_directory(directory)  # then there is space
        _note_removed(root, job_id)
        return removed
    return remove_directory(directory)


def _note_removed(root: Root, job_id: str) -> None:
    descriptor = open_own(root.removed_jobs, os.O_WRONLY | os.O_APPEND)
    try:
        write_all(descriptor, f"\n{job_id}\n".encode())  # the line before may be incomplete
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def end_removed_jobs(store: Store, root: Root) -> int:
    """Mark the jobs as removed whose directories were removed after this copy of the database was made; those that have
    not ended become CANCELLED. Return how many. Raises OSError, StoreError."""
    try:
        lines = Path(root.removed_jobs).read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return 0
    now, jobs = store.now(), store.get_many([line for line in lines if is_job_id(line)])
    changes = []
    for job in jobs:
        if job.removed_at is None:
            message = "removed after this copy of the database was made"
            steps = () if job.state.is_terminal else ((JobState.CANCELLED, now),)
            changes.append((job, Change(steps, message=message, columns={"removed_at": now})))
    ended = store.apply_many(changes)
    if ended:
        log.warning("%d jobs were removed after this copy of the database was made, and are marked again", len(ended))
    return len(ended)


def remove_files(storage: JobStorage, job: Job) -> None:
    """Remove the directory of a removed job, and that of its array if all its elements are removed. Raises OSError and
    StoreError."""
    remove_job_directory(storage.root, job.id)
    element = job.spec.element
    if element is not None and not storage.store.arrays_to_keep([element.array]):
        remove_directory(Path(storage.root.array(element.array).path))

"""Removes directories of jobs and arrays.

A directory first gets a name that no job has, in one step, and is emptied afterwards. If the process is killed
meanwhile, the janitor removes the rest.
"""

from __future__ import annotations

import errno
import logging
import secrets
from pathlib import Path

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.domain.job.job import Job
from ffdl_batch.host.filesystem import find_mount_below
from ffdl_batch.services.job_storage import JobStorage

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


def finish_removal(doomed: Path) -> None:
    """Remove a renamed directory. Raises OSError."""
    try:
        remove_tree(str(doomed))
    except FileNotFoundError:
        log.info("%s is being removed by another daemon, too", doomed)


def remove_files(storage: JobStorage, job: Job) -> None:
    """Remove the directory of a removed job, and that of its array if all its elements are removed. Raises OSError and
    StoreError."""
    remove_directory(Path(storage.root.job(job.id).path))
    element = job.spec.element
    if element is not None and not storage.store.arrays_to_keep([element.array]):
        remove_directory(Path(storage.root.array(element.array).path))

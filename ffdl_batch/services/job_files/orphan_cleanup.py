"""Removes files and directories that no row of the database refers to.

These are directories of submissions that were never acknowledged and of removed jobs, unused archives, and files that a
killed process left half written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.attempt.reader import NO_WAY, find_own_denial
from ffdl_batch.config import Settings
from ffdl_batch.config.daemon_location import LOCK_NAME
from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.job import is_job_id
from ffdl_batch.domain.outcome.controller_events import Phase
from ffdl_batch.services.job_files.removal import REMOVING, finish_removal, remove_directory, remove_job_directory
from ffdl_batch.services.job_storage import JobStorage

log = logging.getLogger(__name__)

HALF_WRITTEN_AGE_S = 3600.0
CHANGED_S = 2 * 86400.0
SUBMITTED_S = 30 * 86400.0
MAX_JOBS = 10_000
_NAMES = re.compile(rf"\.now-.+|\.{re.escape(LOCK_NAME)}\..+|\..+\.[0-9a-f]{{8}}(-journal|-wal|-shm)?")
"""Matches temporary names of :func:`ffdl_batch.services.job_storage.file_time`, the daemon's lock,
:func:`ffdl_batch.attempt.file_writer.write_bytes`, and copies of databases with their journals."""
_PHASES = re.compile(rf"\.({'|'.join(Phase)})\.(start_time|exit)\.[0-9a-f]{{8}}")
"""Matches temporary names of controllers in a directory where learners have files, too."""


def sweep_half_written(storage: JobStorage, settings: Settings) -> int:
    """Remove half-written files that are older than an hour by the file system's clock; return how many.

    Raises StoreError, OSError.
    """
    now = storage.file_time(storage.root.path)
    left = (path for place, names in _places(storage, settings) for path in _half_written(place, names))
    old = [path for path in left if _age(path, now) > HALF_WRITTEN_AGE_S]
    for path in old:
        with suppress(OSError):  # another daemon's janitor may remove it at the same time
            remove_tree(str(path))
    return len(old)


def _places(storage: JobStorage, settings: Settings) -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Yield directories, and the pattern of half-written files in each."""
    root, now = storage.root, storage.clock.now()
    tree = Path(root.path)
    for path in {Path(settings.state_dir), tree, *(path for path in tree.iterdir() if path.is_dir())}:
        yield path, _NAMES
    arrays: set[str] = set()
    for job in storage.store.list_jobs(uid=None, since=now - SUBMITTED_S, limit=MAX_JOBS):
        if job.updated_at > now - CHANGED_S:
            directory = root.job(job.id)
            yield from ((Path(directory.path), _NAMES), (Path(directory.template.path), _NAMES))
            for number in range(1, job.attempt + 1):
                attempt = directory.attempt(number)
                yield from ((Path(place), _NAMES) for place in (attempt.path, attempt.submit, attempt.claim))
                yield Path(attempt.state), _PHASES
            if job.spec.element is not None:
                arrays.add(job.spec.element.array)
    for array in sorted(arrays):
        shared = Path(root.array(array).path)
        for path in (shared, *shared.glob("chunk-[0-9]*"), *shared.glob("chunk-[0-9]*/submit")):
            yield path, _NAMES


def _half_written(place: Path, names: re.Pattern[str]) -> Iterator[Path]:
    try:
        yield from (path for path in place.iterdir() if names.fullmatch(path.name))
    except OSError as error:
        if error.errno not in NO_WAY and not find_own_denial(str(place)):
            raise


def _age(path: Path, now: float) -> float:
    """Return the seconds since the last write; 0 if the file does not exist or is in a directory that a job closed."""
    try:
        return now - path.lstat().st_mtime
    except (FileNotFoundError, PermissionError):
        return 0.0


ORPHAN_AGE_S = 3600.0
ARCHIVE_AGE_S = 86400.0


def sweep(storage: JobStorage, settings: Settings) -> int:
    """Remove orphans, directories of removed jobs and half-written files older than an hour, and archives older than a
    day that no live job needs.

    Return how many were removed. Ages are by the file system's clock. Several daemons may sweep one tree at once.
    Raises StoreError, OSError.
    """
    return (
        _sweep_jobs(storage) + _sweep_arrays(storage) + _sweep_archives(storage) + sweep_half_written(storage, settings)
    )


def _sweep_jobs(storage: JobStorage) -> int:
    old = _old_directories(storage, Path(storage.root.path) / "jobs", is_job_id)
    jobs = storage.store.get_many(list(old))
    known = {str(job.id) for job in jobs}
    removed = [job.id for job in jobs if job.removed_at is not None]
    if old.keys() - known:
        known |= storage.store.left_out()  # their directories stay, as the restore reported
    orphans = sum(_condemn(path) for job_id, path in old.items() if job_id not in known)

    def remove_of_job(path: Path) -> bool:
        return remove_job_directory(storage.root, path.name)

    return orphans + sum(_removed(old[job_id], remove_of_job) for job_id in removed)


def _sweep_arrays(storage: JobStorage) -> int:
    arrays = Path(storage.root.arrays)
    old = _old_directories(storage, arrays, is_array_id) if arrays.is_dir() else {}
    known, needed = storage.store.count_elements(old), storage.store.arrays_to_keep(old)
    orphans = sum(_condemn(path) for array_id, path in old.items() if array_id not in known)
    return orphans + sum(_removed(path) for array_id, path in old.items() if array_id in known.keys() - needed)


def _old_directories(storage: JobStorage, place: Path, is_id: Callable[[str], bool]) -> dict[str, Path]:
    """Return the directories in `place` that are named by an id and old enough to be orphans."""
    now = storage.file_time(str(place))
    for left in place.glob(f"{REMOVING}*"):  # by a process that was killed while it removed them
        _removed(left, finish_removal)
    return {path.name: path for path in place.iterdir() if is_id(path.name) and _age(path, now) > ORPHAN_AGE_S}


def _condemn(path: Path) -> bool:
    """Remove an orphan; return False if another daemon was faster, or if it has a deployed attempt."""
    if any(path.glob("attempt-[0-9]*")) or any(path.glob("chunk-[0-9]*")):
        # Only acknowledged jobs are deployed, so the database has lost this one.
        log.error(
            "%s is of a job that was deployed, and the database does not have it: was an older copy restored, or "
            "another database configured? The directory is left alone",
            path,
        )
        return False
    log.info("removing %s: nothing of that id was ever acknowledged", path)
    return _removed(path)


def _removed(path: Path, remove: Callable[[Path], bool] = remove_directory) -> bool:
    """Remove a directory; return whether this daemon did. One that cannot be removed must not keep the janitor from the
    others."""
    try:
        return remove(path)
    except OSError as error:
        log.warning("%s cannot be removed; it is tried again in an hour: %s", path, error)
        return False


def _sweep_archives(storage: JobStorage) -> int:
    needed = storage.store.live_digests()
    models = Path(storage.root.models)
    now = storage.file_time(str(models))
    unused = [p for p in models.glob("*.zip") if p.stem not in needed and _age(p, now) > ARCHIVE_AGE_S]
    unused += [p for p in models.glob(".receiving-*") if _age(p, now) > ORPHAN_AGE_S]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)

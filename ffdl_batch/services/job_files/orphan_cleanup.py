"""Removes what no row speaks of: directories of submissions that were never acknowledged, unused archives, and what a
killed daemon left half written."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from ffdl_batch.domain.job.array import is_array_id
from ffdl_batch.domain.job.job import is_job_id
from ffdl_batch.services.job_files.temporary_files import sweep_half_written
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)

ORPHAN_AGE_S = 3600.0
ARCHIVE_AGE_S = 86400.0
_CONDEMNED = ".removing-"
"""What a directory is called from the moment that it is nobody's."""


def sweep(platform: Platform) -> int:
    """Remove orphans and half-written files older than an hour, and archives that no live job needs, older than a day;
    returns how many.

    Ages are by the file system's own clock. Several daemons may sweep one tree at once. Raises StoreError, OSError.
    """
    return _sweep_jobs(platform) + _sweep_arrays(platform) + _sweep_archives(platform) + sweep_half_written(platform)


def _sweep_jobs(platform: Platform) -> int:
    old = _old_directories(platform, Path(platform.root.path) / "jobs", is_job_id)
    known = {str(job.id) for job in platform.store.get_many(list(old))}
    if old.keys() - known:
        known |= platform.store.left_out()  # they stay, and that was said when they were left out
    return sum(_condemn(path) for job_id, path in old.items() if job_id not in known)


def _sweep_arrays(platform: Platform) -> int:
    arrays = Path(platform.root.arrays)
    old = _old_directories(platform, arrays, is_array_id) if arrays.is_dir() else {}
    known = platform.store.count_elements(old)
    return sum(_condemn(path) for array_id, path in old.items() if array_id not in known)


def _old_directories(platform: Platform, place: Path, is_id: Callable[[str], bool]) -> dict[str, Path]:
    """Those in `place` whose names are ids, and that may be orphans by their age."""
    now = platform.file_time(str(place))
    for left in place.glob(f"{_CONDEMNED}*"):  # by whoever died over it
        _remove(left)
    return {path.name: path for path in place.iterdir() if is_id(path.name) and _age(path, now) > ORPHAN_AGE_S}


def _condemn(path: Path) -> bool:
    """Remove an orphan; False where another daemon was faster, or it is none."""
    if any(path.glob("attempt-[0-9]*")) or any(path.glob("chunk-[0-9]*")):
        # Nothing is deployed that was not acknowledged: it is the database that lacks something.
        log.error(
            "%s is of a job that was deployed, and the database does not have it: was an older copy restored, or "
            "another database configured? The directory is left alone",
            path,
        )
        return False
    doomed = path.with_name(f"{_CONDEMNED}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return False
    log.info("removing %s: nothing of that id was ever acknowledged", path)
    _remove(doomed)
    return True


def _remove(doomed: Path) -> None:
    try:
        shutil.rmtree(doomed)
    except FileNotFoundError:
        log.info("%s is being removed by another daemon, too", doomed)


def _sweep_archives(platform: Platform) -> int:
    needed = platform.store.live_digests()
    models = Path(platform.root.models)
    now = platform.file_time(str(models))
    unused = [p for p in models.glob("*.zip") if p.stem not in needed and _age(p, now) > ARCHIVE_AGE_S]
    unused += [p for p in models.glob(".receiving-*") if _age(p, now) > ORPHAN_AGE_S]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


def _age(path: Path, now: float) -> float:
    """Seconds since the last change; 0 for what is gone. Hard links made since renew nothing."""
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0

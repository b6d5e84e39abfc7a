"""Removes what no row speaks of: directories of submissions that were never acknowledged, unused archives."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from ffdl_batch.domain.job import JobId, parse_job_id
from ffdl_batch.services.platform import Platform

log = logging.getLogger(__name__)

ORPHAN_AGE_S = 3600.0
ARCHIVE_AGE_S = 86400.0


def sweep(platform: Platform) -> int:
    """Remove orphans older than an hour and archives that no live job needs, older than a day; returns how many."""
    return _sweep_directories(platform) + _sweep_archives(platform)


def _sweep_directories(platform: Platform) -> int:
    candidates: dict[JobId, Path] = {}
    for path in (Path(platform.root.path) / "jobs").iterdir():
        try:
            candidates[parse_job_id(path.name)] = path
        except ValueError:
            continue
    old = {job_id: path for job_id, path in candidates.items() if _age(path) > ORPHAN_AGE_S}
    known = {job.id for job in platform.store.get_many(list(old))}
    orphans = [path for job_id, path in old.items() if job_id not in known]
    for path in orphans:
        log.info("removing %s: no job of that id was ever acknowledged", path)
        shutil.rmtree(path)
    return len(orphans)


def _sweep_archives(platform: Platform) -> int:
    needed = platform.store.live_digests()
    models = Path(platform.root.models)
    unused = [p for p in models.glob("*.zip") if p.stem not in needed and _age(p) > ARCHIVE_AGE_S]
    unused += [p for p in models.glob(".receiving-*") if _age(p) > ORPHAN_AGE_S]
    for path in unused:
        path.unlink(missing_ok=True)
    return len(unused)


def _age(path: Path) -> float:
    """Seconds since the last change, by this machine's clock; hard links made since renew nothing."""
    return time.time() - path.stat().st_mtime

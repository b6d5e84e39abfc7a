"""Files and directories that a daemon or a controller was writing when it was killed, under a name that no reader takes
for anything.

Only its own directories and those of jobs that changed lately, and of their arrays, are looked through: a tree holds
the jobs of years.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.attempt.reader import NO_WAY
from ffdl_batch.config.daemon_location import LOCK_NAME
from ffdl_batch.domain.outcome.controller_events import Phase
from ffdl_batch.services.platform import Platform

HALF_WRITTEN_AGE_S = 3600.0
CHANGED_S = 2 * 86400.0
SUBMITTED_S = 30 * 86400.0
MAX_JOBS = 10_000
_CONTROLLERS = r".+\.\d+\.tmp"
"""Matches the suffix that :func:`ffdl_batch.attempt.file_writer.write_text` appends to the final name of a file."""
_NAMES = re.compile(
    rf"\.now-.+|\.building-.+|\.{re.escape(LOCK_NAME)}\..+|\..+\.[0-9a-f]{{8}}(-journal|-wal|-shm)?|{_CONTROLLERS}"
)  # fmt: skip
"""Of :func:`ffdl_batch.services.clocks.file_time`, adapters that build in a directory of the tree, the daemon's lock,
:func:`ffdl_batch.services.whole_files.write_whole`, copies of databases with what SQLite keeps beside them, and
controllers."""
_PHASES = re.compile(rf"({'|'.join(Phase)})\.(start_time|exit)\.{_CONTROLLERS}")
"""What controllers write where learners have files of their own."""


def sweep_half_written(platform: Platform) -> int:
    """Remove them where they are older than an hour, by the file system's clock; returns how many.

    Raises StoreError, OSError.
    """
    now = platform.file_time(platform.root.path)
    left = (path for place, names in _places(platform) for path in _half_written(place, names))
    old = [path for path in left if _age(path, now) > HALF_WRITTEN_AGE_S]
    for path in old:
        with suppress(OSError):  # another daemon's janitor may remove it at the same time
            remove_tree(str(path))
    return len(old)


def _places(platform: Platform) -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Directories, and what a half-written file is called there."""
    root, now = platform.root, platform.clock.now()
    tree = Path(root.path)
    for path in {Path(platform.settings.state_dir), tree, *(path for path in tree.iterdir() if path.is_dir())}:
        yield path, _NAMES
    arrays: set[str] = set()
    for job in platform.store.list_jobs(uid=None, since=now - SUBMITTED_S, limit=MAX_JOBS):
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
        if error.errno not in NO_WAY:
            raise


def _age(path: Path, now: float) -> float:
    """Seconds since it was written; 0 for what is gone."""
    try:
        return now - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0

"""Measures the disk space of job directories, for a limited time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace

from ffdl_batch.attempt.directory_tree import Directories, walk
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.views import JobView

MEASURE_S = 60.0
"""Maximum time for all directories of a request."""
_BLOCK = 512
"""The unit of `st_blocks` (stat(2))."""


class _OutOfTime(Exception):
    """The time for measuring is over."""


def with_disk_use(root: Root, jobs: Iterable[JobView], limit_s: float = MEASURE_S) -> tuple[JobView, ...]:
    """Return the jobs with the disk space of their directories; without it if the time is over before."""
    deadline = time.monotonic() + limit_s
    return tuple(replace(job, disk_bytes=_measure(root.job(job.id).path, deadline)) for job in jobs)


def _measure(directory: str, deadline: float) -> int | None:
    """Return the allocated bytes below a directory; None if they are not known at `deadline`. Parts that cannot be read
    do not count. A file with several links counts in parts: all jobs of an array share one model archive."""
    total = 0.0
    try:
        with Directories(directory) as tree:
            for _, descriptor, entries in walk(tree, unread=lambda _path, _error: None):
                total += os.fstat(descriptor).st_blocks * _BLOCK
                for entry in entries:
                    total += _allocated(entry)
                if time.monotonic() > deadline:
                    raise _OutOfTime
    except FileNotFoundError:
        return 0
    except (OSError, _OutOfTime):
        return None
    return round(total)


def _allocated(entry: os.DirEntry[str]) -> float:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:  # it was removed meanwhile
        return 0.0
    return found.st_blocks * _BLOCK / max(1, found.st_nlink)

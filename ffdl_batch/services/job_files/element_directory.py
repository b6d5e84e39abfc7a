"""Makes the directories of elements that were submitted by a table, for services that need them before their tasks
start."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ffdl_batch.attempt.element_files import make_elements
from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.job.job import Job


def make_directories(root: Root, jobs: Iterable[Job]) -> None:
    """Make the directories and marks of those of `jobs` that native arrays have and whose tasks have not started.
    Raises OSError."""
    arrays: dict[str, list[str]] = {}
    for job in jobs:
        if job.attempt == 1 and _may_be_unmade(root, job):
            assert job.spec.element is not None
            arrays.setdefault(job.spec.element.array, []).append(job.id)
    for array, ids in arrays.items():
        make_elements(root, array, ids)


def make_first_attempt(root: Root, job: Job) -> None:
    """Make the directory of the first attempt before a later one is submitted, so that a task that starts late finds
    it complete and fenced. Raises OSError."""
    if job.attempt > 1 and _may_be_unmade(root, job):
        assert job.spec.element is not None
        make_elements(root, job.spec.element.array, [job.id])


def _may_be_unmade(root: Root, job: Job) -> bool:
    return job.spec.element is not None and not os.path.lexists(root.job(job.id).attempt(1).submit_begun)

"""Jobs that a job waits for: from training ids in ``batch.dependency`` to the scheduler's own ids."""

from __future__ import annotations

import re

from ffdl_batch.domain.job import Job
from ffdl_batch.domain.spec import JobSpec
from ffdl_batch.services.platform import Platform

_TRAINING_ID = re.compile(r"training-[0-9a-z]{9}", re.ASCII)


def native_dependencies(platform: Platform, spec: JobSpec, backend: str) -> dict[str, str]:
    """The scheduler's ids, by training id, of those that have one."""
    return {other.id: other.native_id for other in _others(platform, spec, backend) if other.native_id}


def expected_dependencies(platform: Platform, spec: JobSpec, backend: str) -> dict[str, str]:
    """As above, for a plan that is not sent yet: a job that will get its id later stands for itself."""
    awaited = {other.id: str(other.id) for other in _others(platform, spec, backend) if _is_awaited(other)}
    return awaited | native_dependencies(platform, spec, backend)


def waits_for_dependency(platform: Platform, spec: JobSpec, backend: str) -> bool:
    """Whether a job that this one depends on has no scheduler's id yet, and may still get one."""
    return any(_is_awaited(other) for other in _others(platform, spec, backend))


def _is_awaited(other: Job) -> bool:
    return not other.native_id and not other.state.is_terminal


def _others(platform: Platform, spec: JobSpec, backend: str) -> list[Job]:
    """The owner's jobs of the same backend among those that are named."""
    named = _TRAINING_ID.findall(spec.batch.dependency)
    found = platform.store.get_many(named) if named else []
    return [other for other in found if other.backend == backend and other.uid == platform.uid]

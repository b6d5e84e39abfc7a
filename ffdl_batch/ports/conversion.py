"""Protocols of converters, which read or write another system's job scripts, and of histories, which report past jobs.

:mod:`ffdl_batch.plugins` finds them by entry point. A converter is pure: it takes and returns texts, opens no file and
asks no scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ffdl_batch.domain.conversion import Conversion, ExportedJob, ExportRequest, Source
from ffdl_batch.domain.job.past_job import PastJobs, Period, Place
from ffdl_batch.domain.job.spec import JobSpec


@runtime_checkable
class ReadsScripts(Protocol):
    """A converter that makes manifests of job scripts."""

    def recognises(self, text: str) -> bool:
        """Return whether the text is such a script, judging by its content alone."""
        ...

    def convert(self, source: Source) -> Conversion:
        """Return the manifest, and what became of each directive and line. Raises CannotConvert."""
        ...

    def differences(self, source: Source, script: str) -> tuple[str, ...]:
        """Return how the request of `script`, written by :meth:`WritesScripts.write`, differs from that of `source`:
        printable lines, those of `source` after ``-``, those of `script` after ``+``. Raises CannotConvert."""
        ...


@runtime_checkable
class WritesScripts(Protocol):
    """A converter that makes a job script of a manifest. The script needs no ffdl installation."""

    def write(self, spec: JobSpec, *, contained: bool = True) -> str:
        """Return the script. `contained`: learners run in their image, else as plain processes of the node. Raises
        CannotConvert for a job that it cannot express."""
        ...


@runtime_checkable
class ExportsJobs(Protocol):
    """A converter that writes a job for a backend, as a script or objects that need no ffdl installation."""

    @property
    def pulls_images(self) -> bool:
        """Whether images are references of registries, never files."""
        ...

    def export(self, request: ExportRequest) -> ExportedJob:
        """Write the job. Raises CannotConvert for a job that cannot be expressed, InvalidRequest for bad settings."""
        ...


class History(Protocol):
    """The past jobs of a scheduler, and where they could run now."""

    def past_jobs(self, period: Period) -> PastJobs | None:
        """Return the jobs that have run, and the rows that cannot be read: a bad row hides no other. None if this
        backend has no accounting. Raises HistoryUnknown."""
        ...

    def places(self) -> Sequence[Place]:
        """Return the partitions or profiles, the default one first. Raises HistoryUnknown."""
        ...

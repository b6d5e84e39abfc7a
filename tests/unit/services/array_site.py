"""A site whose scheduler takes arrays, and the array that most of its tests submit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.submission import SubmissionResult
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.submit import submit
from tests.fakes.arrays import ArrayScheduler
from tests.unit.services.conftest import MANIFEST, Site


def manifest(batch: str) -> str:
    """The usual manifest with a `batch:` block."""
    return f"{MANIFEST}batch: {{{batch}}}\n"


@dataclass
class ArraySite:
    """A site and its scheduler by its own type."""

    site: Site
    scheduler: ArrayScheduler

    def send(self, batch: str, key: str = "k1", **changes: object) -> SubmissionResult:
        """Submit one manifest, whatever comes of it."""
        submission = self.site.submission(key, manifest(batch), **changes)
        (result,) = submit(self.site.platform, self.site.caller, [submission])
        return result

    def accept(self, batch: str, key: str = "k1", **changes: object) -> str:
        """Submit one array that is surely accepted; its id."""
        result = self.send(batch, key, **changes)
        assert result.problem is None, result.problem
        return result.id

    def elements(self, array: str) -> list[Job]:
        """Its jobs, by index."""
        return self.site.platform.store.elements_of(array)

    def states(self, array: str) -> list[JobState]:
        """Their states."""
        return [job.state for job in self.elements(array)]

    def deploy(self, times: int = 1) -> None:
        """So many steps of a deployer of its own."""
        deployer = Deployer(self.site.platform)
        for _ in range(times):
            deployer.step()

    @property
    def sizes(self) -> Sequence[int]:
        """How many tasks each accepted native array has."""
        return [len(plan.tasks) for plan in self.scheduler.arrays]


def with_arrays(site: Site) -> ArraySite:
    """The site with a scheduler that takes arrays."""
    scheduler = ArrayScheduler()
    site.scheduler = scheduler
    site.platform.adapters.use("fake", scheduler)
    return ArraySite(site, scheduler)

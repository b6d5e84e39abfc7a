"""Remembers what the watcher has seen of each attempt between two polls. It may be lost at a restart without harm."""

from __future__ import annotations

from collections.abc import Container, Iterable

from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.outcome.observation import Observation, Phase
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass(slots=True)
class Memory:
    """What is known of a job's current attempt. Times are monotonic."""

    attempt: int = 0
    observation: Observation | None = None
    """The scheduler's latest listing."""
    ended_seen_at: float | None = None
    """When a listing first showed the attempt as ended."""
    missing: int = 0
    """How many listings in a row left the attempt out."""
    missing_since: float | None = None
    """When the first of these listings was made."""
    requeues: int | None = None
    """How often the history shows that the scheduler restarted the attempt; None if the history has not been read."""
    restarts: int = 0
    """How many restarts of its learners are certainly in the history."""
    alarms: int = 0
    """How many incidents that did not end the attempt are certainly in the database."""
    read_once: bool = False
    """Whether its files have been read completely and the result has been written."""
    concluded: bool = False
    """Whether its head has written its final record."""
    lost: bool = False
    """Whether the scheduler has forgotten the attempt although no process ended it, or has given its id to another job.
    """
    dropped: bool = False
    """Whether it was a waiting task that the scheduler has removed from its array."""
    own: Observation | None = None
    """The latest listing that was certainly about the attempt."""
    doubtful: bool = False
    """Whether the latest listing may be about another job."""
    is_new: bool = False
    """Whether the attempt got its id while this watcher ran, so that no earlier listing can have shown it."""

    def note(self, seen: Observation | None, now: float, *, is_own: bool = True) -> bool:
        """Record what was listed at `now` (None: the attempt was left out). Return whether the attempt must be judged.
        `is_own`: the listing is certainly about the attempt."""
        self.doubtful = seen is not None and not is_own
        if seen is not None and is_own:
            self.own = seen
        self.missing = 0 if seen is not None else self.missing + 1
        self.dropped = self.dropped and seen is None
        self.missing_since = None if seen is not None else now if self.missing_since is None else self.missing_since
        changed = seen is not None and seen != self.observation
        if seen is not None:
            self.observation = seen
            if seen.phase is not Phase.ENDED:
                self.ended_seen_at = None
            elif self.ended_seen_at is None:
                self.ended_seen_at = now
        return changed or self.wants_look

    @property
    def was_never_seen(self) -> bool:
        """Whether no listing since its submission has shown the attempt, or what may be it."""
        return self.is_new and self.observation is None

    @property
    def wants_look(self) -> bool:
        """Whether the attempt must be judged after each listing: it was listed as ended, or its files were not read
        completely, or the result was not written."""
        return self.ended_seen_at is not None or not self.read_once

    def is_unmoved(self, seen: Observation | None) -> bool:
        """Whether the listing equals the last one and nothing else has to be judged."""
        if seen is None or self.missing or self.doubtful or self.wants_look:
            return False
        return seen is self.observation or seen == self.observation

    def is_suspect(self, listings: int, since: float, is_explained: bool) -> bool:
        """Whether the scheduler may have forgotten an attempt that the latest listing left out, too.

        True if at least `listings` in a row left it out and the first one was before `since` (any time if
        `is_explained`), or if its head has written its final record.
        """
        is_old = is_explained or (self.missing_since is not None and self.missing_since <= since)
        return self.concluded or (self.missing + 1 >= listings and is_old)


class Memories:
    """The memories of all jobs that are watched."""

    def __init__(self) -> None:
        self._by_job: dict[JobId, Memory] = {}
        self._has_met_all = False

    def meet(self, jobs: Iterable[Job]) -> None:
        """Register the jobs that are watched. For those of the first call, earlier listings are unknown."""
        if not self._has_met_all:
            for job in jobs:
                self.of(job)
        self._has_met_all = True

    def of(self, job: Job) -> Memory:
        """Return the memory of the job's current attempt."""
        memory = self._by_job.get(job.id)
        return memory if memory is not None and memory.attempt == job.attempt else self.renew(job)

    def renew(self, job: Job) -> Memory:
        """Start a new memory for the job's current attempt."""
        memory = self._by_job[job.id] = Memory(job.attempt, is_new=self._has_met_all)
        return memory

    def keep(self, ids: Container[JobId]) -> None:
        """Forget all other jobs."""
        self._by_job = {key: memory for key, memory in self._by_job.items() if key in ids}

    def clear(self) -> None:
        """Forget everything."""
        self._by_job.clear()
        self._has_met_all = False

"""What the watcher remembers of one attempt between two looks; lost at a restart without harm."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.outcome.observation import Observation, Phase


@dataclass(slots=True)
class Memory:
    """`observation` is the scheduler's latest word, `missing` how many listings in a row left the attempt out, and
    `missing_since` and `ended_seen_at` when the first one did, or listed it as ended (monotonic). `concluded`: its head
    has said its last word. `requeues` is how often the history says that it was started anew, where that was read, and
    `restarts` how many of its learners' restarts are surely in it. `alarms` is how many of its incidents that
    ended nothing surely are in the database.
    `lost`: the scheduler has forgotten the attempt, which nobody ended, or has given its id to another job. `dropped`:
    it was a waiting task, and the scheduler has taken it out of its array. `own` is the latest word that surely was
    about the attempt; `doubtful`: the latest one may be about another job. `is_new`: the attempt got its id under the
    watcher's eyes, so that what it has not seen of it was not there.
    """

    attempt: int = 0
    observation: Observation | None = None
    ended_seen_at: float | None = None
    missing: int = 0
    missing_since: float | None = None
    requeues: int | None = None
    restarts: int = 0
    alarms: int = 0
    read_once: bool = False
    concluded: bool = False
    lost: bool = False
    dropped: bool = False
    own: Observation | None = None
    doubtful: bool = False
    is_new: bool = False

    def note(self, seen: Observation | None, now: float, *, is_own: bool = True) -> bool:
        """Remember what was listed at `now` (None = it was left out); whether that asks for a closer look. `is_own`: it
        surely is about the attempt."""
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
        """Whether each listing asks for a closer look: what was seen is judged anew when its time has come, or what
        was read last was not all, or could not be written."""
        return self.ended_seen_at is not None or not self.read_once

    def is_unmoved(self, seen: Observation | None) -> bool:
        """Whether noting this would change nothing and ask for nothing: the scheduler said the same last time."""
        if seen is None or self.missing or self.doubtful or self.wants_look:
            return False
        return seen is self.observation or seen == self.observation

    def is_suspect(self, listings: int, since: float, is_explained: bool) -> bool:
        """Whether the scheduler may have forgotten an attempt that the latest listing left out, too.

        So many listings in a row left it out, the first one before `since` (where nothing else explains that it is
        left out); or nothing more is to be heard of it.
        """
        is_old = is_explained or (self.missing_since is not None and self.missing_since <= since)
        return self.concluded or (self.missing + 1 >= listings and is_old)


class Memories:
    """Those of all jobs that are watched."""

    def __init__(self) -> None:
        self._by_job: dict[JobId, Memory] = {}
        self._has_met_all = False

    def meet(self, jobs: Iterable[Job]) -> None:
        """These are all that are watched. The first time nobody knows what was listed of them before."""
        if not self._has_met_all:
            for job in jobs:
                self.of(job)
        self._has_met_all = True

    def of(self, job: Job) -> Memory:
        """What is remembered of the job's current attempt."""
        memory = self._by_job.get(job.id)
        return memory if memory is not None and memory.attempt == job.attempt else self.renew(job)

    def renew(self, job: Job) -> Memory:
        """Remember nothing of the job's current attempt."""
        memory = self._by_job[job.id] = Memory(job.attempt, is_new=self._has_met_all)
        return memory

    def keep(self, ids: Container[JobId]) -> None:
        """Forget all other jobs."""
        self._by_job = {key: memory for key, memory in self._by_job.items() if key in ids}

    def clear(self) -> None:
        """Forget everything."""
        self._by_job.clear()
        self._has_met_all = False

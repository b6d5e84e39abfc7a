"""Reads the rows of all jobs that are being followed with one statement, however many they are."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from ffdl_batch.domain.job.job import Job
from ffdl_batch.store import Store

FRESH_S = 0.5
"""Maximum age of a row that :meth:`FollowedJobs.see` returns."""
POLL_S, LONGEST_POLL_S = 0.25, 1.0
POLLS_PER_S = 200
"""Maximum polls of all followers together, within the limits of LONGEST_POLL_S."""


class Pause(float):
    """A follower has read everything, and continues after so many seconds."""


class FollowedJobs:
    """The jobs that log and metric streams follow. Safe in every thread. Times are of a monotonic clock."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._followed: Counter[str] = Counter()
        self._followers = 0
        self._seen: Mapping[str, Job] = {}
        self._seen_at = 0.0

    @contextlib.contextmanager
    def following(self, job_id: str) -> Iterator[None]:
        """Read the job's row with the others' while the block runs."""
        with self._lock:
            self._followed[job_id] += 1
            self._followers += 1
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1
                self._followed[job_id] -= 1
                self._followed += Counter()  # drops jobs without followers

    def pause(self) -> Pause:
        """Return the pause between two polls of a follower."""
        return Pause(min(LONGEST_POLL_S, max(POLL_S, self._followers / POLLS_PER_S)))

    @property
    def followers(self) -> int:
        """Number of streams that follow a job."""
        return self._followers

    def see(self, job_id: str, now: float) -> Job | None:
        """Return the job, at most FRESH_S old at `now`; None if it does not exist. Raises StoreError."""
        with self._lock:
            if now - self._seen_at >= FRESH_S or job_id not in self._seen:
                self._seen = {job.id: job for job in self._store.get_many([*self._followed])}
                self._seen_at = now
            return self._seen.get(job_id)

"""Computes the daemon's metrics for Prometheus, at each request: of its user's jobs, and of the daemon itself.

Counts of jobs come from the database, so they survive a restart; times of schedulers are counted since the daemon's
start. Only the histories of jobs that changed since the last request are read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from ffdl_batch import __version__
from ffdl_batch.domain.job.job import HistoryEntry, JobId
from ffdl_batch.domain.job_state import TERMINAL, Cause, JobState
from ffdl_batch.domain.metrics.prometheus_text import Family, Histogram, render
from ffdl_batch.domain.outcome.continuation import Interruption
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage

PHASE_BOUNDS_S = (1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0)
OVERLAP_S = 60.0
"""Maximum time between a change and its commit."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the daemon's process since its start."""

    started_at: float
    requests: int = 0
    streams: int = 0


class Figures:
    """The metrics of one daemon. `counted` returns those of its process."""

    def __init__(self, storage: JobStorage, adapters: Adapters, counted: Callable[[], Counted]) -> None:
        self._storage, self._adapters, self._counted = storage, adapters, counted
        self._lock = threading.Lock()
        self._seen: dict[JobId, int] = {}
        self._read_to = float("-inf")
        self._phases: dict[tuple[str, JobState], Histogram] = {}
        self._ended: dict[tuple[str, str, str], int] = {}

    def text(self) -> str:
        """Return all metrics in Prometheus' text format. Raises StoreError."""
        with self._lock:
            self._catch_up()
            return render([*self._of_jobs(), *self._of_schedulers(), *self._of_process()])

    # ------------------------------------------------------------------------------------------------------ histories

    def _catch_up(self) -> None:
        store = self._storage.store
        changed = store.changed_since(self._storage.uid, self._read_to - OVERLAP_S)
        ids = list(changed)
        for start in range(0, len(ids), _BATCH):
            for job_id, entries in store.histories(ids[start : start + _BATCH]).items():
                self._count(job_id, changed[job_id][0], entries)
        self._read_to = max((at for _, at in changed.values()), default=self._read_to)

    def _count(self, job_id: JobId, backend: str, entries: Sequence[HistoryEntry]) -> None:
        """Count the duration of each state that was left, and each end. Entries that change no state do not count."""
        last = self._seen.get(job_id, 0)
        changes = [entry for entry in entries if entry.cause not in (Cause.RESTARTED, Cause.STORED, Cause.RESIZED)]
        for entry, left in zip(changes, [*changes[1:], None], strict=True):
            if entry.seq > last and entry.state in TERMINAL:
                key = (backend, entry.state.value, entry.error_code)
                self._ended[key] = self._ended.get(key, 0) + 1
            if left is not None and left.seq > last and entry.state not in TERMINAL:
                found = self._phases.setdefault((backend, entry.state), Histogram(PHASE_BOUNDS_S))
                found.observe(max(0.0, left.at - entry.at))
        self._seen[job_id] = max((entry.seq for entry in entries), default=last)

    # -------------------------------------------------------------------------------------------------------- families

    def _of_jobs(self) -> list[Family]:
        store, uid = self._storage.store, self._storage.uid
        jobs = Family("ffdl_jobs", "gauge", "Jobs by state; ended jobs stay in the database.")
        counts = store.count_states(uid)
        for backend in sorted({backend for backend, _ in counts}):
            for state in JobState:
                jobs.put(counts.get((backend, state), 0), backend=backend, state=state.value)
        ended = Family("ffdl_jobs_ended_total", "counter", "Ends of jobs, by state and error code (000: none).")
        for (backend, end, code), count in sorted(self._ended.items()):
            ended.put(count, backend=backend, state=end, error_code=code)
        phases = Family("ffdl_job_phase_seconds", "histogram", "How long jobs were in a state before they left it.")
        for (backend, state), histogram in sorted(self._phases.items()):
            phases.put(histogram, backend=backend, state=state.value)
        attempts = Family("ffdl_attempts_total", "counter", "Attempts that were begun.")
        recoveries = Family("ffdl_recoveries_total", "counter", "Attempts that were interrupted.")
        gpus = Family("ffdl_gpu_seconds_total", "counter", "GPU seconds of attempts that have ended.")
        pending = Family("ffdl_pending_uploads", "gauge", "Attempts whose results or logs are not in their store yet.")
        sums = store.sum_attempts(uid)
        for backend in sorted({one.backend for one in sums}):
            of_it = [one for one in sums if one.backend == backend]
            attempts.put(sum(one.count for one in of_it), backend=backend)
            gpus.put(sum(one.gpu_seconds for one in of_it), backend=backend)
            pending.put(sum(one.pending_uploads for one in of_it), backend=backend)
        for one in sums:
            if one.interruption not in ("", Interruption.STAGED.value):
                simulated = "yes" if one.simulated else "no"
                recoveries.put(one.count, backend=one.backend, interruption=one.interruption, drill=simulated)
        return [jobs, ended, phases, attempts, recoveries, gpus, pending]

    def _of_schedulers(self) -> list[Family]:
        up = Family("ffdl_backend_up", "gauge", "Whether the backend answered when it was asked last.")
        adapters = self._adapters
        for backend in adapters.health():
            up.put(0 if backend.unreachable_since is not None else 1, backend=backend.name)
        words = "How long the scheduler took to answer a question or request, since the daemon's start."
        took = Family("ffdl_scheduler_request_seconds", "histogram", words)
        for (name, outcome), histogram in sorted(adapters.latencies.read().items()):
            took.put(histogram, backend=name, outcome=outcome)
        return [up, took]

    def _of_process(self) -> list[Family]:
        counted = self._counted()
        store = Family("ffdl_database_up", "gauge", "Whether the database takes what is written.")
        store.put(0 if self._storage.store.outage is not None else 1)
        build = Family("ffdl_build_info", "gauge", "The daemon's release.")
        build.put(1, version=__version__)
        requests = Family("ffdl_http_requests_total", "counter", "Requests since the daemon's start.")
        requests.put(counted.requests)
        streams = Family("ffdl_http_streams", "gauge", "Logs and metrics that are being read now.")
        streams.put(counted.streams)
        started = Family("process_start_time_seconds", "gauge", "When the daemon started, since the epoch.")
        started.put(counted.started_at)
        cpu = Family("process_cpu_seconds_total", "counter", "Processor seconds of the daemon.")
        cpu.put(time.process_time())
        memory = Family("process_resident_memory_bytes", "gauge", "Memory of the daemon.")
        memory.put(_resident_bytes())
        return [store, build, requests, streams, started, cpu, memory]


def _resident_bytes() -> int:
    """Return the resident memory of this process, from /proc/self/statm (proc(5))."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - read at each request
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

"""Jobs as rows of a database, with whatever past a test wants: what would take a cluster months."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field

from sqlalchemy import insert
from sqlalchemy.engine import Engine

from ffdl_batch.domain.job.job import JobId, attempt_token
from ffdl_batch.domain.job.spec import BatchOptions, Element, Framework, JobSpec, Resources
from ffdl_batch.domain.job_state import TERMINAL, JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.store.records import encode_spec
from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS


@dataclass(frozen=True, slots=True)
class PlantedAttempt:
    """Columns of an attempt that matter to reports."""

    native_id: str = ""
    ended_at: float | None = None
    outcome_code: str = ""
    interruption: str = ""
    gpu_seconds: float = 0.0
    saved_at: float | None = None
    took_s: float | None = None
    """Of a confirmed checkpoint."""
    learners: int = 0
    global_batch: int | None = None
    gpus: float | None = None


@dataclass(frozen=True, slots=True)
class PlantedJob:
    """`history` are rows: time, state, attempt, and the cause where it is not progress."""

    history: Sequence[tuple[float, JobState, int] | tuple[float, JobState, int, str]]
    attempts: Sequence[PlantedAttempt] = ()
    number: int = 0
    uid: int = 1000
    user: str = "ada"
    name: str = "digits"
    framework: str = "pytorch"
    backend: str = "fake"
    resources: Resources = field(default_factory=Resources)
    batch: BatchOptions = field(default_factory=BatchOptions)
    array: str = ""
    gpus_now: float | None = None

    @property
    def id(self) -> JobId:
        """By its number."""
        return JobId(f"training-{self.number:09}")

    def spec(self) -> JobSpec:
        """As it was submitted."""
        element = Element(self.array, self.name, 1, 2, 0, 1) if self.array else None
        framework = Framework(self.framework, "1.0", "python train.py")
        return JobSpec(self.name, framework, resources=self.resources, batch=self.batch, element=element)


def plant(engine: Engine, jobs: Sequence[PlantedJob]) -> None:
    """Write them, in one transaction."""
    with engine.begin() as connection:
        connection.execute(insert(JOBS), [_job(job) for job in jobs])
        attempts = [row for job in jobs for row in _attempts(job)]
        if attempts:
            connection.execute(insert(ATTEMPTS), attempts)
        connection.execute(insert(HISTORY), [row for job in jobs for row in _history(job)])


def _job(job: PlantedJob) -> dict[str, object]:
    first, last = job.history[0], job.history[-1]
    overrides = "{}" if job.gpus_now is None else json.dumps({"gpus": job.gpus_now})
    return {
        "id": job.id, "uid": job.uid, "user": job.user, "name": job.name, "spec": encode_spec(job.spec()),
        "state": last[1].value, "requested_action": "none", "backend": job.backend, "attempt": len(job.attempts),
        "native_id": "", "revision": 1, "submitted_at": first[0], "updated_at": last[0],
        "ended_at": last[0] if last[1] in TERMINAL else None, "error_code": "000", "message": "",
        "pending_reason": "", "nodes": "", "network": "", "results": "", "model_digest": "", "warnings": "[]",
        "log_tail": "[]", "overrides": overrides, "spent": "{}", "array_id": job.array, "array_index": 0,
        "lease_owner": "", "lease_token": "", "lease_until": 0.0, "next_try_at": 1e12, "deploy_tries": 0,
    }  # fmt: skip


def _attempts(job: PlantedJob) -> list[dict[str, object]]:
    return [
        {
            "job_id": job.id, "number": number, "token": attempt_token(job.id, number), "backend": job.backend,
            "native_id": one.native_id, "created_at": job.history[0][0], "submitted_at": job.history[0][0],
            "ended_at": one.ended_at, "outcome_code": one.outcome_code, "network": "", "nodes": "",
            "interruption": one.interruption, "gpu_seconds": one.gpu_seconds,
            "checkpoint": json.dumps(_checkpoint(one)), "learners": one.learners, "global_batch": one.global_batch,
            "gpus": one.gpus,
        }
        for number, one in enumerate(job.attempts, 1)
    ]  # fmt: skip


def _checkpoint(attempt: PlantedAttempt) -> dict[str, object]:
    saved: dict[str, object] = {} if attempt.saved_at is None else {"saved_at": attempt.saved_at}
    return saved if attempt.took_s is None else {**saved, "confirmed": True, "took_s": attempt.took_s}


def _history(job: PlantedJob) -> list[dict[str, object]]:
    return [
        {
            "job_id": job.id, "seq": seq, "at": row[0], "state": row[1].value, "attempt": row[2],
            "cause": row[3] if len(row) > 3 else "progress", "message": "", "error_code": "000",
        }
        for seq, row in enumerate(job.history, 1)
    ]  # fmt: skip

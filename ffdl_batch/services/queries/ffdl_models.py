"""Shows jobs as the models of FfDL's REST API, version 1.

Source: IBM/FfDL, restapi/api_v1/swagger/swagger.yml and server/models_impl.go. Times are milliseconds since the epoch,
as text. Credentials are never shown.
"""

from __future__ import annotations

from typing import Any

from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job.spec import DataStore
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.queries.jobs import MAX_LISTED, own_job

PLACE = "/v1/models/"
_WORDS = {JobState.DEPLOYING: "PENDING", JobState.CANCELLED: "HALTED"}
"""States that FfDL does not have."""
_CREDENTIALS = frozenset({"user_name", "password", "token", "key", "secret"})
_MASK = "***"
_UNITS = (("GiB", 1024**3), ("GB", 1000**3), ("MiB", 1024**2), ("MB", 1000**2))


def list_models(storage: JobStorage, caller: Caller) -> list[dict[str, Any]]:
    """Return the caller's jobs, newest first."""
    return [model_of(job) for job in storage.store.list_jobs(uid=caller.default_owner, limit=MAX_LISTED)]


def get_model(storage: JobStorage, caller: Caller, job_id: str) -> dict[str, Any]:
    """Return one job. Raises Refused."""
    return model_of(own_job(storage.store, caller, job_id))


def model_of(job: Job) -> dict[str, Any]:
    """Return a job in FfDL's form."""
    spec, resources = job.effective_spec, job.effective_spec.resources
    unit, size = next(((name, size) for name, size in _UNITS if resources.memory_bytes % size == 0), ("MB", 1000**2))
    return {
        "model_id": job.id,
        "location": f"{PLACE}{job.id}",
        "name": spec.name,
        "description": spec.description,
        "framework": {"name": spec.framework.name, "version": spec.framework.version},
        "training": {
            "command": spec.framework.command,
            "cpus": resources.cpus,
            "gpus": resources.gpus,
            "memory": resources.memory_bytes / size,
            "memory_unit": unit,
            "learners": resources.learners,
            "input_data": [f"{store.id}-input" for store in spec.data_stores if store.training_data],
            "output_data": [f"{store.id}-output" for store in spec.data_stores if store.training_results],
            "training_status": _status(job),
        },
        "data_stores": [one for store in spec.data_stores for one in _stores(store)],
        "metrics": [],
    }


def _status(job: Job) -> dict[str, str]:
    word = _WORDS.get(job.state, job.state.value)
    message = job.message or job.pending_reason
    if job.state is JobState.CANCELLED:
        message = f"cancelled{f': {message}' if message else ''}"
    return {
        "status": word,
        "status_description": word,
        "status_message": message,
        "error_code": job.error_code,
        "submitted": _milliseconds(job.submitted_at),
        "completed": _milliseconds(job.ended_at),
    }


def _milliseconds(at: float | None) -> str:
    return "" if at is None else str(round(at * 1000))


def _stores(store: DataStore) -> list[dict[str, Any]]:
    """Return a data store as FfDL shows it: one for the input and one for the results."""
    connection = {name: _MASK if name in _CREDENTIALS else value for name, value in store.connection.items()}
    ways = (("input", store.training_data), ("output", store.training_results))
    return [
        {
            "data_store_id": f"{store.id}-{way}",
            "type": store.type.value,
            "connection": {**connection, "bucket": container},
        }
        for way, container in ways
        if container
    ]

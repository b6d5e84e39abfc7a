"""Read jobs for a simulation from CSV: jobs with models, or a trace of a cluster. The header determines the format.

A trace has the duration of each job, but no model. Each job gets a synthetic model, and the work that takes this
duration on its GPUs. Times count from the first submission. Jobs without GPUs or without a duration are ignored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.elastic.csv_tables import DamagedTable, Row, read_header, read_rows
from ffdl_batch.elastic.policies import MOST_POOL_GPUS
from ffdl_batch.elastic.simulator import Arrival, Model
from ffdl_batch.elastic.synthetic import Scaling, SyntheticTimes, usual_batch, work_of
from ffdl_batch.host.fast_dataclass import dataclass

LONGEST_S = 10 * 365 * 86_400.0
LATEST_S = 1e11

ARRIVALS = ("job", "submitted_s", "model", "gpus", "batch")
"""Our own format: jobs of measured or synthetic models."""
HELIOS = ("job_id", "gpu_num", "submit_time", "duration")
"""Traces of SenseTime's clusters (github.com/S-Lab-System-Group/HeliosData)."""
PHILLY = ("jobid", "submitted_time", "start_time", "end_time", "gpus")
"""Trace of Microsoft's cluster (github.com/msr-fiddle/philly-traces), as CSV with one line per job."""
USAGE = ("job", "submitted", "learners", "gpus_per_learner", "gpu_hours")
"""Output of `ffdl report usage --format csv`."""


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    submitted_s: float
    gpus: int
    duration_s: float
    tenant: str


def read_arrivals(
    path: Path, models: Mapping[str, Model], most_gpus: int, convergence: Path | None = None
) -> list[Arrival]:
    """Read jobs of these models, which are those of the table `convergence` or synthetic ones.

    Raises OSError, and DamagedTable, also for a job with more than `most_gpus`.
    """
    arrivals = {}
    for row in read_rows(path, ARRIVALS):
        name, model = row.text("job"), row.text("model")
        if name in arrivals:
            raise row.error(f"job {quoted(name)} occurs twice", "rename one of them")
        if model not in models:
            known_models = f"use {', '.join(sorted(models))}"
            if convergence is None:
                tables = "or describe its models in the tables of --throughput and --convergence"
                raise row.error(f"model {quoted(model)} is unknown", f"{known_models}, {tables}")
            raise row.error(f"model {quoted(model)} is not in {convergence}", f"add it there, or {known_models}")
        batch = row.whole("batch", 1, 10**9)
        if batch not in (known := models[model].iterations):
            cause = f"the iterations of model {quoted(model)} with batch {batch} are unknown"
            raise row.error(cause, f"use {', '.join(map(str, sorted(known)))}")
        gpus = _fitting(row, name, row.whole("gpus", 1, 100_000), most_gpus)
        submitted_s = row.number("submitted_s", 0, LATEST_S)
        arrivals[name] = Arrival(name, submitted_s, model, gpus, batch, row.cells.get("tenant", ""))
    return list(arrivals.values())


def is_trace(path: Path) -> bool:
    """Return whether the table is a trace of a cluster. Raises DamagedTable and OSError."""
    return _format_of(path) is not None


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs that ran on a cluster."""

    arrivals: list[Arrival]
    left_out: int
    """Number of lines without GPUs or without a duration."""


def read_trace(path: Path, times: SyntheticTimes, most_gpus: int, scaling: Scaling | None, seed: int) -> Trace:
    """Read jobs that ran on a cluster. `scaling` None = a random one for each job.

    Raises OSError, and DamagedTable, also for a job with more than `most_gpus`.
    """
    chosen = _format_of(path)
    if chosen is None:
        raise DamagedTable(f"{path}, line 1: the columns are not those of a known table of jobs")
    columns, read = chosen
    jobs: dict[str, _Job] = {}
    left_out = 0
    for row in read_rows(path, columns):
        job = read(row)
        if job is None or not job.gpus or not job.duration_s:
            left_out += 1
            continue
        if job.name in jobs:
            raise row.error(f"job {quoted(job.name)} occurs twice", "rename one of them")
        _fitting(row, job.name, job.gpus, most_gpus)
        jobs[job.name] = job
    if not jobs:
        raise DamagedTable(f"{path} has no job with GPUs and a duration; add at least one")
    return Trace(_arrivals(list(jobs.values()), times, scaling, seed), left_out)


def _fitting(row: Row, job: str, gpus: int, most: int) -> int:
    if gpus > most:
        cause = f"job {quoted(job)} has {gpus} GPUs, but the pool has {most}"
        larger = f"simulate with --gpus {gpus} or more, or remove the line"
        limit = f"remove the line: a simulated pool has at most {MOST_POOL_GPUS} GPUs"
        raise row.error(cause, larger if gpus <= MOST_POOL_GPUS else limit)
    return gpus


def _arrivals(jobs: Sequence[_Job], times: SyntheticTimes, scaling: Scaling | None, seed: int) -> list[Arrival]:
    chance = random.Random(seed)  # noqa: S311 - no secret
    first_s = min(job.submitted_s for job in jobs)
    arrivals = []
    for job in sorted(jobs, key=lambda job: job.submitted_s):
        model, batch = (scaling or chance.choice(list(Scaling))).value, usual_batch(job.gpus)
        arrival = Arrival(job.name, job.submitted_s - first_s, model, job.gpus, batch, job.tenant)
        arrivals.append(replace(arrival, work=work_of(job.duration_s, times, model, job.gpus, batch)))
    return arrivals


def _helios(row: Row) -> _Job | None:
    if not (gpus := row.whole("gpu_num", 0, 100_000)):
        return None
    duration_s = row.number("duration", 0, LONGEST_S)
    return _Job(row.text("job_id"), row.moment_s("submit_time"), gpus, duration_s, row.cells.get("vc", ""))


def _philly(row: Row) -> _Job | None:
    gpus = row.whole("gpus", 0, 100_000)
    if not gpus or {row.cells["start_time"], row.cells["end_time"]} & {"", "None"}:
        return None
    duration_s = row.moment_s("end_time") - row.moment_s("start_time")
    if not 0 <= duration_s <= LONGEST_S:
        raise row.error("end_time is before start_time, or more than ten years after it", "correct one of them")
    return _Job(row.text("jobid"), row.moment_s("submitted_time"), gpus, duration_s, row.cells.get("vc", ""))


def _usage(row: Row) -> _Job | None:
    gpus = row.number("learners", 1, 100_000) * row.number("gpus_per_learner", 0, 100_000)
    if gpus < 1:
        return None
    duration_s = 3600 * row.number("gpu_hours", 0, LONGEST_S) / gpus
    return _Job(row.text("job"), row.moment_s("submitted"), round(gpus), duration_s, row.cells.get("account", ""))


_Reader = Callable[[Row], _Job | None]
_FORMATS: tuple[tuple[tuple[str, ...], _Reader], ...] = ((HELIOS, _helios), (PHILLY, _philly), (USAGE, _usage))


def _format_of(path: Path) -> tuple[tuple[str, ...], _Reader] | None:
    """Return the columns and the reader of the trace format that matches the header; None if none does."""
    header = read_header(path)
    for columns, reader in _FORMATS:
        if set(columns) <= set(header):
            return columns, reader
    return None

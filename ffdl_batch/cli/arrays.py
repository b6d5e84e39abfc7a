"""Print arrays, and find their jobs, for commands that take ids of arrays as well as of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ffdl_batch.cli.render.formatting import format_time, paint_state, print_line
from ffdl_batch.exit_handling import complain
from ffdl_batch.output import echo_styled

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.domain.job.views import ArrayView, JobView


_RESUMABLE = frozenset({"HALTED", "FAILED"})


def is_array(text: str) -> bool:
    """Return whether an argument names a whole array; ``array-0a1b2c3d4_3`` is a job."""
    return text.startswith("array-") and "_" not in text


def describe_array(array: ArrayView, what: str = "") -> str:
    """Return the array on one line: ``array-0a1b2c3d4 3 QUEUED, 1 COMPLETED``."""
    counts = ", ".join(f"{count} {state}" for state, count in array.states.items())
    return f"{array.id} {counts}" + (f"; {what}" if what else "")


def print_array(array: ArrayView) -> None:
    """Print the array in labelled lines."""
    print_line("Array", array.id)
    print_line("Name", array.name)
    print_line("User", array.user)
    print_line("Backend", array.backend)
    print_line("Jobs", str(array.elements))
    print_line("At once", str(array.limit) if array.limit is not None else "")
    print_line("Sweep over", ", ".join(array.variables))
    print_line("Submitted", format_time(array.submitted_at))
    print_line("Directory", array.directory)
    for state, count in array.states.items():
        echo_styled(f"  {paint_state(state, f'{state:<12}')} {count}")


def elements_of(client: Client, array_id: str) -> Sequence[JobView]:
    """Return the jobs of an array, by index. Raises UnknownJob if there is no such array."""
    jobs = client.arrays.elements(array_id)
    if not jobs:
        client.arrays.get(array_id)  # raises
    return jobs


def resumable_jobs(client: Client, ids: Sequence[str]) -> Iterator[str]:
    """Yield the ids, with each array replaced by its jobs that are HALTED or FAILED. An unknown array is yielded as it
    is, so that the daemon refuses it."""
    for job_id in ids:
        jobs = client.arrays.elements(job_id) if is_array(job_id) else ()
        if not jobs:
            yield job_id
            continue
        resumable = [job.id for job in jobs if job.state in _RESUMABLE]
        if not resumable:
            complain(f"no job of {job_id} is HALTED or FAILED; nothing was resumed")
        yield from resumable


def exit_code_of(jobs: Sequence[JobView]) -> int:
    """Return the exit code of a command that waited for all of `jobs`: the largest of their exit codes."""
    from ffdl_batch.client.api import job_exit_code

    return max((job_exit_code(job) for job in jobs), default=0)

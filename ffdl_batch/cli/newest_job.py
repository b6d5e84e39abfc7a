"""Find the newest job, for commands without an id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain

if TYPE_CHECKING:
    from ffdl_batch.client import Client


def job_or_newest(client: Client, given: str | None) -> str:
    """Return `given`; if it is None, the id of the newest job, which is printed on standard error."""
    if given is not None:
        return given
    found = newest_job(client)
    complain(f"{found} is the newest job")
    return found


def newest_job(client: Client) -> str:
    """Return the id of the newest job, or of its array if it is an element of one. Raises Stop if there is no job."""
    from ffdl_batch.client.api import JobFilter

    found = client.list(JobFilter(limit=1))
    if not found:
        raise Stop(ExitCode.FAILED, "there are no jobs yet; submit one with ffdl-submit")
    return found[0].array or found[0].id

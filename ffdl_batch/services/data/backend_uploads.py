"""What an attempt owes whose files are not on this machine, or that was cut off from its stores: its backend stores it,
where they are.

It goes on without a daemon, and is found again by the next one. What it comes to is asked of the backend; only where
that has failed too often is it given up, and the job ends with what has not been stored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Storing
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.job import attempt_token
from ffdl_batch.domain.outcome.controller_events import FinalRecord, Outcome
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerError, SchedulerUnreachable, SubmissionUncertain
from ffdl_batch.ports.capabilities import StoresApart
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.outcome.attempt_records import read_final, read_launch
from ffdl_batch.store import Attempt

NOT_STORED, INTERRUPTED = 74, 75
"""Statuses of payments that ended. The second says nothing about the store: it is begun anew, however often."""


class NotBegun(OSError):
    """The backend takes it later: that says nothing about the store either."""


def is_apart(attempt: AttemptDir) -> bool:
    """Whether its files are elsewhere: it was pods."""
    launch = read_launch(attempt)
    return launch is not None and launch.pod is not None


@dataclass(slots=True)
class SeparateUpload:
    """The payment for `debt`. `is_last`: what comes of it is the attempt's end. `why` it waits, or failed."""

    adapters: Adapters
    pending: Attempt
    attempt: AttemptDir
    is_last: bool
    why: str = ""

    def begin(self) -> None:
        """Raises OSError; NotBegun where it is begun later."""
        try:
            with self.adapters.asking(self.pending.backend) as adapter:
                if not isinstance(adapter, StoresApart):
                    raise InvalidRequest(f"{self.pending.backend} stores nothing that it has cut off from its store")
                adapter.begin_storing(attempt_token(self.pending.job_id, self.pending.number), self.attempt)
        except (SchedulerUnreachable, SubmissionUncertain) as error:
            raise NotBegun(str(error)) from error
        except SchedulerError as error:
            self._give_up(str(error))
            raise OSError(str(error)) from error

    def poll(self) -> int | None:
        """See :class:`ffdl_batch.services.data.pending_uploads.Upload`."""
        try:
            with self.adapters.asking(self.pending.backend) as adapter:
                assert isinstance(adapter, StoresApart)
                found = adapter.how_storing_goes(attempt_token(self.pending.job_id, self.pending.number))
        except (InvalidRequest, SchedulerUnreachable) as error:
            self.why = str(error)
            return None
        return self._after(found)

    def _after(self, found: Storing) -> int | None:
        self.why = found.why
        if not found.ended:
            return None
        if os.path.lexists(self.attempt.uploaded):
            return 0
        if found.interrupted:
            return INTERRUPTED
        self._give_up(found.why)
        return NOT_STORED

    def end(self) -> None:
        """It goes on: whoever comes next finds it."""

    def _give_up(self, why: str) -> None:
        """Have the attempt end without it, where it waits for nothing else. Raises OSError."""
        final = read_final(self.attempt)
        if self.is_last and final is not None and final.stores_later:
            write_cell(self.attempt.final, to_plain(unstored(final, why)))


def unstored(final: FinalRecord, why: str) -> FinalRecord:
    """The last word on an attempt whose results are not stored."""
    message = f"results and logs cannot be stored: {why}"
    kept = replace(final, stores_later=False)
    if final.outcome is Outcome.COMPLETED:
        return replace(kept, outcome=Outcome.FAILED, error_code="S303", message=message)
    if final.outcome is Outcome.HALTED and final.error_code == "000":
        return replace(kept, error_code="S305", message=f"{final.message}; {message}")
    return kept

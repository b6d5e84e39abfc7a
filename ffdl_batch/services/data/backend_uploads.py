"""Pending uploads that the backend makes, because the files are not on this host or their attempt had no access to its
stores.

Such an upload continues without a daemon, and the next daemon finds it again. The backend is asked for its result. If
it fails too often, it is abandoned, and the job ends without what has not been stored.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Storing
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.job import attempt_token
from ffdl_batch.domain.outcome.controller_events import FinalRecord, Outcome
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerError, SchedulerUnreachable, SubmissionUncertain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import StoresApart
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.outcome.attempt_records import read_final, read_launch
from ffdl_batch.store import Attempt

NOT_STORED, INTERRUPTED = 74, 75
"""Statuses of ended uploads. The second is not the store's fault: the upload is repeated without a limit."""


class NotBegun(OSError):
    """The backend could not begin the upload yet. This is not the store's fault either."""


def is_apart(attempt: AttemptDir) -> bool:
    """Return whether the attempt's files are not on this host, because it ran in pods."""
    launch = read_launch(attempt)
    return launch is not None and launch.pod is not None


@dataclass(slots=True)
class SeparateUpload:
    """The upload of one attempt by its backend."""

    adapters: Adapters
    pending: Attempt
    attempt: AttemptDir
    is_last: bool
    """Whether this is the last try: its failure ends the attempt."""
    why: str = ""
    """Why it waits, or failed."""

    def begin(self) -> None:
        """Have the backend begin. Raises NotBegun if it can begin later, and OSError."""
        try:
            with self.adapters.asking(self.pending.backend) as adapter:
                if not isinstance(adapter, StoresApart):
                    raise InvalidRequest(f"{self.pending.backend} cannot store files after an attempt")
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
        """Do nothing: the upload continues, and the next daemon finds it."""

    def _give_up(self, why: str) -> None:
        """End the attempt without the upload if this was the last try. Raises OSError."""
        final = read_final(self.attempt)
        if self.is_last and final is not None and final.stores_later:
            write_cell(self.attempt.final, to_plain(unstored(final, why)))


def unstored(final: FinalRecord, why: str) -> FinalRecord:
    """Return the final record of an attempt whose results cannot be stored."""
    message = f"results and logs cannot be stored: {why}"
    kept = replace(final, stores_later=False)
    if final.outcome is Outcome.COMPLETED:
        return replace(kept, outcome=Outcome.FAILED, error_code="S303", message=message)
    if final.outcome is Outcome.HALTED and final.error_code == "000":
        return replace(kept, error_code="S305", message=f"{final.message}; {message}")
    return kept

"""The circuit breaker of the accounting: sacct is not run for a while after slurmdbd did not answer.

A slurmdbd that hangs must not delay the search for each job, and its outage is no outage of slurmctld. If sacct refuses
an id, it does not ask slurmdbd, so this does not count as an outage.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ffdl_batch.domain.backend_facts import AccountingOutage
from ffdl_batch.domain.circuit_breaker import Circuit, Permit
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable, SchedulerUnreachable
from ffdl_batch.host.backoff import growing_pause
from ffdl_slurm.gateways.command_runner import CommandResult

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
WANTED_S = 120.0
"""Seconds after the last request for the accounting until its outage is no longer reported: no job needs it then."""
_REFUSED_ID = "bad job/step specified"
"""The message of 20.11 to 26.05 (`slurm_addto_step_list` and `slurm_addto_id_list` in
src/common/slurm_protocol_defs.c)."""


class IdRefused(Exception):
    """sacct refused one of the ids, and looked for none of them."""


def check_ids(result: CommandResult) -> None:
    """Raise IdRefused if sacct failed because of an id."""
    if result.returncode > 0 and _REFUSED_ID in result.stderr.lower():
        raise IdRefused(result.message)


class Accounting:
    """Decides whether sacct is run. Safe in every thread. It logs an outage when it begins, when its cause changes,
    from time to time, and when it is over."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` returns the seconds of a monotonic clock."""
        self._now = now
        self._lock = threading.Lock()
        self._circuit = Circuit()
        self._wanted_at = 0.0

    def outage(self) -> AccountingOutage | None:
        """Return the outage; None if the last request was answered, or if there was none for WANTED_S."""
        with self._lock:
            circuit, now = self._circuit, self._now()
            if circuit.since is None or now - self._wanted_at > WANTED_S:
                return None
            return AccountingOutage(now - circuit.since, circuit.cause, max(0.0, circuit.again_at - now))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask one question in the body. Raises AccountingUnreachable if the circuit is open, and for
        SchedulerUnreachable of the body."""
        with self._lock:
            self._wanted_at = self._now()
            self._circuit, permit = self._circuit.ask(self._wanted_at)
            if permit is None:
                raise self._unreachable()
        try:
            yield
        except SchedulerUnreachable as error:
            raise self._failed(permit, str(error)) from error
        except BaseException:
            with self._lock:
                self._circuit = self._circuit.returned(permit)
            raise
        with self._lock:
            before = self._circuit
            after = self._circuit = before.succeeded(permit)
            now = self._now()
        if after.is_worth_logging(before) and before.since is not None:
            log.warning("the accounting answers again, after %.0f s", now - before.since)

    def _failed(self, permit: Permit, cause: str) -> AccountingUnreachable:
        spread = secrets.randbelow(1000) / 1000
        with self._lock:
            before = self._circuit
            pause = growing_pause(before.failures + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S, spread)
            now = self._now()
            after = self._circuit = before.failed(permit, cause, now, now + pause)
            error = self._unreachable()
        if after.is_worth_logging(before):
            what = "does not answer" if before.since is None else f"has not answered for {now - before.since:.0f} s"
            log.warning("the accounting %s, and is asked less and less often: %s", what, cause)
        return error

    def _unreachable(self) -> AccountingUnreachable:
        """Return the error of an outage. The lock is held."""
        again_in_s = max(0.0, self._circuit.again_at - self._now())
        return AccountingUnreachable(f"the accounting does not answer: {self._circuit.cause}", again_in_s)

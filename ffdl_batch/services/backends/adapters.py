"""Holds the adapters in use, the facts about their sites, and whether their schedulers answer.

All calls to a scheduler go through :meth:`Adapters.asking`, which is the circuit breaker: if a scheduler does not
answer, no call is made for a while, and then one call tests it.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.config import Settings
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.circuit_breaker import Circuit, Permit
from ffdl_batch.domain.daemon_health import BackendHealth
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.metrics.prometheus_text import Histogram
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NotNow,
    NotTaken,
    NotUnderstood,
    SchedulerMissing,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.plugins import AdapterContext, create_adapter
from ffdl_batch.ports.capabilities import HasAccounting
from ffdl_batch.ports.clock import Clock
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.backends.site_facts import REFRESH_PATIENCE_S, SiteFacts
from ffdl_batch.services.backends.submit_limits import AFTER_NO_ANSWER_S, SubmitLimits, spread_pause

log = logging.getLogger(__name__)

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Latencies:
    """Durations of calls by backend, for calls that were answered and calls that failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Histogram] = {}

    def observe(self, backend: str, seconds: float, *, answered: bool) -> None:
        """Record one call."""
        with self._lock:
            key = (backend, "answered" if answered else "failed")
            self._found.setdefault(key, Histogram(BOUNDS_S)).observe(max(0.0, seconds))

    def read(self) -> dict[tuple[str, str], Histogram]:
        """Return a copy of the histograms."""
        with self._lock:
            return copy.deepcopy(self._found)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Pause between two calls to a scheduler that does not answer."""
LOOK_PAUSE_S = 4.0
"""The longest pause if the scheduler is missing. A call costs nothing then, and detects soon that it has been
installed."""


class NotAsked(NotNow):
    """The scheduler did not answer a moment ago, so it was not called."""


class StillMissing(NotAsked, SchedulerMissing):
    """The scheduler was missing a moment ago, so it was not called. Has the message of that call."""


class Adapters:
    """The adapters of one daemon. Safe in every thread.

    An outage is logged when it begins, when its cause changes, at growing intervals while it lasts, and when it ends.
    """

    def __init__(self, settings: Settings, context: AdapterContext, clock: Clock, only: str = "") -> None:
        """`only` is the one backend that this daemon may use; "" = all."""
        self._only = only
        self.settings, self._context, self._clock = settings, context, clock
        self.submit_limits = SubmitLimits(clock)
        self.latencies = Latencies()
        self._lock = threading.Lock()
        self._made: dict[str, Scheduler] = {}
        self._sites: dict[str, SiteFacts] = {}
        self._circuits: dict[str, Circuit] = {}
        self._versions: dict[str, str] = {}
        self._answered_at: dict[str, float] = {}

    def default_name(self) -> str:
        """Return the configured backend, else slurm if sbatch is on the PATH, else local."""
        return self._only or self.settings.effective_backend(os.environ)[0]

    def get(self, name: str) -> Scheduler:
        """Return the adapter, for uses that do not call the scheduler. Raises InvalidRequest for an unknown name or
        unusable settings."""
        with self._lock:
            if self._only and name != self._only:
                raise InvalidRequest(
                    f"backend {name!r} is not allowed: tenants without accounts can use only {self._only!r}"
                )
            if name not in self._made:
                given, origins = self.settings.backend_settings(name), self.settings.backend_origins(name)
                self._made[name] = create_adapter(name, given, self._context, origins)
            return self._made[name]

    def check(self, new: Settings) -> None:
        """Raise InvalidRequest if an adapter cannot be created with the new settings of its backend, or if the new
        default backend has none."""
        names = {name for name in self._made if new.backend_settings(name) != self.settings.backend_settings(name)}
        default = new.effective_backend(os.environ)[0]
        names |= {default} if default != self.settings.effective_backend(os.environ)[0] else set()
        for name in sorted(names):
            create_adapter(name, new.backend_settings(name), self._context, new.backend_origins(name))

    def use(self, name: str, scheduler: Scheduler) -> None:
        """Replace the adapter `name`, for example by one that injects faults in tests."""
        with self._lock:
            self._made[name] = scheduler

    # ------------------------------------------------------------------------------------------- asking

    @contextmanager
    def asking(self, name: str) -> Iterator[Scheduler]:
        """Return the adapter for one call. The exception that the block raises decides whether the scheduler answered.

        Raises NotAsked if the circuit is open, and what :meth:`get` raises.
        """
        scheduler = self.get(name)
        permit = self._enter(name)
        try:
            with self._timed(name):
                yield scheduler
        except (TooMany, InvalidRequest):
            self._answered(name, permit)
            raise
        except NotTaken as error:  # it opens no circuit, but a probe that got it has failed
            if permit.is_probe and not isinstance(error, NotUnderstood):
                self._failed(name, permit, str(error))
            else:
                self._returned(name, permit)
            raise
        except NotNow:
            self._returned(name, permit)
            raise
        except (SchedulerUnreachable, SubmissionUncertain) as error:
            self._failed(name, permit, str(error), is_missing=isinstance(error, SchedulerMissing))
            raise
        except BaseException:
            self._returned(name, permit)
            raise
        self._answered(name, permit)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun, answered = self._clock.monotonic(), False
        try:
            yield
            answered = True
        except (TooMany, InvalidRequest):
            answered = True
            raise
        finally:
            self.latencies.observe(name, self._clock.monotonic() - begun, answered=answered)

    def may_ask(self, name: str) -> bool:
        """Whether a call would be made now."""
        with self._lock:
            return self._circuit(name).may_ask(self._clock.monotonic())

    def is_out(self, name: str) -> bool:
        """Whether the scheduler did not answer the last call."""
        with self._lock:
            return self._circuit(name).is_open

    def lacks(self, name: str) -> str:
        """Return what must be repaired before the scheduler can be called; "" if it only has to answer again."""
        with self._lock:
            circuit = self._circuit(name)
        return circuit.cause if circuit.is_open and circuit.is_missing else ""

    def wait_s(self, name: str) -> float:
        """Return the seconds until the scheduler may be called again."""
        with self._lock:
            return max(0.0, self._circuit(name).again_at - self._clock.monotonic())

    def pause_s(self, job: Job, error: SchedulerUnreachable) -> float:
        """Return the seconds until the job is tried again that `error` has delayed."""
        if isinstance(error, NotNow):
            return spread_pause(1, AFTER_NO_ANSWER_S, LONGEST_PAUSE_S)
        with self._lock:
            answered_at = self._answered_at.get(job.backend, -math.inf)
        return self.submit_limits.unanswered(job, answered_at)

    def answered(self, name: str) -> None:
        """Record that the scheduler answered a call outside of :meth:`asking`."""
        with self._lock:
            circuit = self._circuit(name)
        self._answered(name, Permit(circuit.changes))

    def failed(self, name: str, detail: str) -> None:
        """Record that the scheduler did not answer a call outside of :meth:`asking`."""
        with self._lock:
            circuit = self._circuit(name)
            if not circuit.may_ask(self._clock.monotonic()):
                return  # it is known already
        self._failed(name, Permit(circuit.changes), detail)

    def health(self) -> tuple[BackendHealth, ...]:
        """Return the health of every backend that was called so far, and of accounting services that do not answer."""
        with self._lock:
            now, monotonic, made = self._clock.now(), self._clock.monotonic(), dict(self._made)
            seen = [
                BackendHealth(
                    name,
                    circuit.since,
                    circuit.cause or self._refuses_all(name),
                    self._versions.get(name, ""),
                    now + max(0.0, circuit.again_at - monotonic) if circuit.is_open else None,
                    maybe_before=circuit.is_open and name not in self._answered_at,
                )
                for name, circuit in sorted(self._circuits.items())
            ]
        return (*seen, *(one for name in sorted(made) if (one := _health_of_accounts(name, made[name], now))))

    def _refuses_all(self, name: str) -> str:
        cause = self.submit_limits.refuses_all(name)
        return f"refuses all submissions, so they wait: {cause}" if cause else ""

    def outages(self) -> tuple[BackendHealth, ...]:
        """Return the backends and accounting services that do not answer."""
        return tuple(one for one in self.health() if one.unreachable_since is not None)

    def _circuit(self, name: str) -> Circuit:
        return self._circuits.get(name, _CLOSED)

    def _enter(self, name: str) -> Permit:
        with self._lock:
            circuit, permit = self._circuit(name).ask(self._clock.monotonic())
            self._circuits[name] = circuit
        if permit is None and circuit.is_missing:
            raise StillMissing(circuit.cause)
        if permit is None:
            raise NotAsked(f"{name} does not answer and is not called for a moment: {circuit.cause}")
        return permit

    def _answered(self, name: str, permit: Permit) -> None:
        with self._lock:
            self._answered_at[name] = self._clock.monotonic()
            before = self._circuit(name)
            after = self._circuits[name] = before.succeeded(permit)
            now = self._clock.now()
        if after.is_worth_logging(before) and before.since is not None:
            self.submit_limits.answers(name)
            log.info("backend %s answers again, after %.0f s", name, now - before.since)

    def _returned(self, name: str, permit: Permit) -> None:
        with self._lock:
            self._circuits[name] = self._circuit(name).returned(permit)

    def _failed(self, name: str, permit: Permit, cause: str, *, is_missing: bool = False) -> None:
        with self._lock:
            before, now = self._circuit(name), self._clock.now()
            longest_s = LOOK_PAUSE_S if is_missing else LONGEST_PAUSE_S
            pause = spread_pause(before.failures + 1, FIRST_PAUSE_S, longest_s)
            again_at = self._clock.monotonic() + pause
            after = self._circuits[name] = before.failed(permit, cause, now, again_at, is_missing=is_missing)
        if after.is_worth_logging(before):
            what = "does not answer" if before.since is None else f"has not answered for {now - before.since:.0f} s"
            log.warning("backend %s %s, and is asked less and less often: %s", name, what, cause)

    # -------------------------------------------------------------------------------------------- sites

    def knows_site(self, name: str) -> bool:
        """Whether :meth:`facts` returns without waiting for long."""
        with self._lock:
            site = self._sites.get(name)
        return site is not None and site.is_known

    def facts(self, name: str) -> BackendFacts:
        """Return the site's facts (:class:`SiteFacts`). Raises SchedulerUnreachable only if it has never answered."""
        return self._site(name).get(may_ask=self.may_ask(name))

    def refresh(self, name: str) -> BackendFacts:
        """Return newer facts of the site, for a request that names something unknown."""
        site = self._site(name)
        site.age()
        return site.get(may_ask=self.may_ask(name), patience_s=REFRESH_PATIENCE_S)

    def _site(self, name: str) -> SiteFacts:
        with self._lock:
            if name not in self._sites:
                file = Path(self.settings.state_dir) / f"site-{name}.json"
                settings = self.settings.backend_settings(name)
                self._sites[name] = SiteFacts(name, lambda: self._probe(name), self._clock, file, dict(settings))
            return self._sites[name]

    def _probe(self, name: str) -> BackendFacts:
        with self.asking(name) as scheduler:
            facts = scheduler.probe()
        with self._lock:
            self._versions[name] = facts.version
        return facts


_CLOSED = Circuit()


def _health_of_accounts(name: str, scheduler: Scheduler, now: float) -> BackendHealth | None:
    """Return the outage of the backend's accounting; None if it answers or the backend has none."""
    outage = scheduler.accounting_outage() if isinstance(scheduler, HasAccounting) else None
    if outage is None:
        return None
    since, again_at = now - outage.for_s, now + outage.again_in_s
    return BackendHealth(f"{name}'s accounting", since, outage.detail, "", again_at, accounts_for=name)

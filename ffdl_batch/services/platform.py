"""What every service needs: settings, store, clock, directories and adapters."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from ffdl_batch.config import Settings
from ffdl_batch.domain.jobdir import Root
from ffdl_batch.domain.views import BackendHealth
from ffdl_batch.ports.clock import Clock, SystemClock
from ffdl_batch.ports.registry import AdapterContext, create_adapter
from ffdl_batch.ports.scheduler import BackendFacts, Scheduler, SchedulerUnreachable
from ffdl_batch.store import Store, open_store

FACTS_LIFE_S = 60.0
"""How long what a site said about itself is taken as true."""
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the peer of the socket, never a field of the request."""

    uid: int
    is_admin: bool = False


@dataclass(slots=True)
class _Standing:
    """How a backend has answered lately. `failures` counts in a row."""

    unreachable_since: float | None = None
    failures: int = 0
    detail: str = ""
    version: str = ""
    not_before: float = 0.0


@dataclass(slots=True)
class _Known:
    facts: BackendFacts
    at: float


class Adapters:
    """The adapters in use, what they said about their sites, and whether they answer (a circuit breaker)."""

    def __init__(self, settings: Settings, context: AdapterContext, clock: Clock) -> None:
        self._settings, self._context, self._clock = settings, context, clock
        self._lock = threading.Lock()
        self._made: dict[str, Scheduler] = {}
        self._facts: dict[str, _Known] = {}
        self._standing: dict[str, _Standing] = {}

    def default_name(self) -> str:
        """The configured backend, else slurm where sbatch is on the PATH, else local."""
        return self._settings.effective_backend(os.environ)[0]

    def get(self, name: str) -> Scheduler:
        """The adapter; raises InvalidRequest for an unknown name or unusable settings."""
        with self._lock:
            if name not in self._made:
                self._made[name] = create_adapter(name, self._settings.backend_settings(name), self._context)
            return self._made[name]

    def use(self, name: str, scheduler: Scheduler) -> None:
        """Put `scheduler` in the place of the adapter `name` (a fault-making one in tests, a wrapped one)."""
        with self._lock:
            self._made[name] = scheduler

    def facts(self, name: str) -> BackendFacts:
        """What the site is, at most a minute old; older where the scheduler does not answer now.

        Raises SchedulerUnreachable only where it has never answered.
        """
        with self._lock:
            known = self._facts.get(name)
        now = self._clock.monotonic()
        if known is not None and (now - known.at < FACTS_LIFE_S or not self.may_ask(name)):
            return known.facts
        try:
            facts = self.get(name).probe()
        except SchedulerUnreachable as error:
            self.failed(name, str(error))
            if known is None:
                raise
            return known.facts
        with self._lock:
            self._facts[name] = _Known(facts, now)
        self.answered(name, facts.version)
        return facts

    def refresh(self, name: str) -> BackendFacts:
        """Ask the site anew, as when a request named something that is not known."""
        with self._lock:
            known = self._facts.get(name)
            if known is not None:
                known.at = -FACTS_LIFE_S
        return self.facts(name)

    def answered(self, name: str, version: str = "") -> None:
        """The scheduler answered: close the circuit."""
        with self._lock:
            old = self._standing.get(name, _Standing())
            self._standing[name] = _Standing(version=version or old.version)

    def failed(self, name: str, detail: str) -> None:
        """The scheduler did not answer: pause longer each time (with jitter), up to LONGEST_PAUSE_S."""
        with self._lock:
            standing = self._standing.setdefault(name, _Standing())
            standing.failures += 1
            standing.detail = detail
            if standing.unreachable_since is None:
                standing.unreachable_since = self._clock.now()
            pause = min(LONGEST_PAUSE_S, 0.5 * 2 ** min(standing.failures, 8))
            jitter = 0.75 + secrets.randbelow(501) / 1000
            standing.not_before = self._clock.monotonic() + pause * jitter

    def may_ask(self, name: str) -> bool:
        """Whether the pause after the last failure is over."""
        with self._lock:
            standing = self._standing.get(name)
            return standing is None or self._clock.monotonic() >= standing.not_before

    def health(self) -> tuple[BackendHealth, ...]:
        """Every backend that was asked so far."""
        with self._lock:
            return tuple(
                BackendHealth(name, s.unreachable_since, s.detail if s.unreachable_since else "", s.version)
                for name, s in sorted(self._standing.items())
            )


@dataclass(slots=True)
class Platform:
    """Everything a service works with. `owner` names this daemon in leases, the same in each of its lives."""

    settings: Settings
    store: Store
    clock: Clock
    root: Root
    user: str
    uid: int
    adapters: Adapters
    owner: str

    def close(self) -> None:
        """Close the database."""
        self.store.close()


def open_platform(settings: Settings, clock: Clock | None = None) -> Platform:
    """Directories made, database migrated and open, adapters not yet asked. Raises StoreError, OSError.

    The caller holds the lock of the state directory: whoever had it before is dead, and leases that this daemon
    held in an earlier life end here, so that a restart goes on at once.
    """
    clock = clock or SystemClock()
    uid = os.getuid()
    user = pwd.getpwuid(uid).pw_name
    root = Root(settings.jobs_dir)
    for directory in (settings.state_dir, root.path, root.doorbell, root.models, str(Path(root.path) / "jobs")):
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    store = open_store(settings.database)
    context = AdapterContext(root=root.path, user=user, uid=uid)
    owner = f"{socket.gethostname()}:{settings.state_dir}"
    store.end_leases_of(owner)
    return Platform(settings, store, clock, root, user, uid, Adapters(settings, context, clock), owner)

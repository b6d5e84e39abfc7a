"""Caches the facts about a backend's site, so that a submission does not wait for a slow or unreachable scheduler.

Known facts are returned at once. When they are old, one thread queries the site, and callers wait for its answer only
for a short time. The last facts are kept in a file of the state directory, so that a daemon that starts during an
outage can plan.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from ffdl_batch import __version__
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, read_whole
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.clock import Clock

log = logging.getLogger(__name__)

LIFE_S = 60.0
"""How long facts are valid."""
YOUNG_S = 5.0
"""How old facts must be before a request that names something unknown causes a query. Also how long facts that change
soon are valid."""
PATIENCE_S = 1.0
"""How long after the start of a query a caller that has older facts waits for the answer."""
REFRESH_PATIENCE_S = 10.0
"""The same for a caller that would otherwise refuse a request."""
FIRST_PATIENCE_S = 90.0
"""The same for a caller without facts. Shorter than the time-out of clients."""
FORMAT = 1

Ask = Callable[[], BackendFacts]
"""Raises SchedulerUnreachable, InvalidRequest."""


@dataclass(frozen=True, slots=True)
class _Known:
    facts: BackendFacts
    at: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query that is running."""

    answer: Future[BackendFacts]
    at: float
    """When it began, by time.monotonic()."""


def _life_s(facts: BackendFacts) -> float:
    return YOUNG_S if facts.is_passing else LIFE_S


class SiteFacts:
    """The facts of one backend. `ask` queries the site, and `file` keeps the facts over restarts. `settings` are those
    of the backend: facts that were kept with other settings are ignored."""

    def __init__(self, name: str, ask: Ask, clock: Clock, file: Path, settings: object) -> None:
        self._name, self._ask, self._clock, self._file = name, ask, clock, file
        self._made_by = _digest(settings)
        self._lock = threading.Lock()
        self._known: _Known | None = None
        self._asked: _Asked | None = None
        self._kept: BackendFacts | None = None

    @property
    def is_known(self) -> bool:
        """Whether `get` returns without waiting for long."""
        with self._lock:
            return self._known is not None

    def get(self, *, may_ask: bool, patience_s: float | None = None) -> BackendFacts:
        """Return the facts. They are at most LIFE_S old if the site answers within `patience_s` (PATIENCE_S), else they
        are the last known ones.

        Without `may_ask`, the site is not queried. Only if no facts are known, this raises what `ask` raises, and
        SchedulerUnreachable if the site is too slow.
        """
        with self._lock:
            known = self._known
            if known is None and (recalled := self._recall()) is not None:
                known = self._known = _Known(recalled, self._clock.monotonic() - LIFE_S)
            if known is not None and (not may_ask or self._clock.monotonic() - known.at < _life_s(known.facts)):
                return known.facts
            asked = self._begin()
        patience_s = PATIENCE_S if patience_s is None else patience_s
        left = asked.at + (FIRST_PATIENCE_S if known is None else patience_s) - time.monotonic()
        try:
            return asked.answer.result(max(0.0, left))
        except TimeoutError:
            if known is None:
                message = f"{self._name} has not described its site within {FIRST_PATIENCE_S:g} s"
                raise SchedulerUnreachable(message) from None
            return known.facts
        except (SchedulerUnreachable, InvalidRequest):
            if known is None:
                raise
            return known.facts

    def age(self) -> None:
        """Mark the facts as old, so that the next call queries the site. Facts younger than YOUNG_S stay valid:
        repeated requests for something that does not exist must not cause a query each."""
        now = self._clock.monotonic()
        with self._lock:
            if self._known is not None and now - self._known.at >= YOUNG_S:
                self._known = _Known(self._known.facts, now - LIFE_S)

    def _begin(self) -> _Asked:
        """Return the running query; start one if there is none. The lock is held."""
        if self._asked is None:
            self._asked = _Asked(Future(), time.monotonic())
            name = f"facts-{self._name}"
            threading.Thread(target=self._run, args=(self._asked,), name=name, daemon=True).start()
        return self._asked

    def _run(self, asked: _Asked) -> None:
        try:
            facts = self._ask()
        except BaseException as error:  # noqa: BLE001 - the callers that wait get it
            with self._lock:
                self._asked = None
            asked.answer.set_exception(error)
            return
        self._keep(facts)
        with self._lock:
            self._known, self._asked = _Known(facts, self._clock.monotonic()), None
        asked.answer.set_result(facts)

    def _keep(self, facts: BackendFacts) -> None:
        """Write the facts to the file, for a later start of the daemon."""
        if facts == self._kept:
            return
        cell = {"format": FORMAT, "made_by": self._made_by, "facts": to_plain(facts)}
        try:
            write_text(self._file, json.dumps(cell) + "\n", durable=False)
        except OSError as error:
            log.warning("the facts about %s could not be written to %s: %s", self._name, self._file, error)
            return
        self._kept = facts

    def _recall(self) -> BackendFacts | None:
        """Return the facts that this release stored with these settings; None if there are none."""
        try:
            cell = json.loads(read_whole(str(self._file), MAX_TEXT_BYTES))
            if cell["format"] != FORMAT or cell["made_by"] != self._made_by:
                return None
            facts = from_plain(BackendFacts, cell["facts"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):  # the record is missing or damaged
            return None
        log.info("the facts about %s are those that an earlier daemon stored in %s", self._name, self._file)
        return facts


def _digest(settings: object) -> str:
    text = json.dumps([__version__, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

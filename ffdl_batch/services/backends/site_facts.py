"""What backends said about their sites, so that nobody who submits waits for a scheduler that is slow or away.

What is known is told at once. When it has aged, one thread asks anew, whoever needs it, and those who come waits for it
only while the answer may come at any moment. What was told last is kept in a file of the state directory: a daemon that
starts while the scheduler is away plans with that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from ffdl_batch import __version__
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, read_whole
from ffdl_batch.domain.backend_facts import BackendFacts
from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.ports.clock import Clock
from ffdl_batch.services.whole_files import write_whole

log = logging.getLogger(__name__)

LIFE_S = 60.0
"""How long what a site said about itself is taken as true."""
YOUNG_S = 5.0
"""How long nobody who misses something asks anew; and how long what is passing is taken as true."""
PATIENCE_S = 1.0
"""How long after an answer was asked for one who has an older one waits for it."""
REFRESH_PATIENCE_S = 10.0
"""The same for one who would have to refuse a request by it."""
FIRST_PATIENCE_S = 90.0
"""How long one waits who has none: less than a client waits for us."""
FORMAT = 1

Ask = Callable[[], BackendFacts]
"""Raises SchedulerUnreachable, InvalidRequest."""


@dataclass(frozen=True, slots=True)
class _Known:
    facts: BackendFacts
    at: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question under way; `at` is time.monotonic()'s, by which waiting is measured."""

    answer: Future[BackendFacts]
    at: float


def _life_s(facts: BackendFacts) -> float:
    return YOUNG_S if facts.is_passing else LIFE_S


class SiteFacts:
    """The facts of one backend. `ask` asks the site, `file` is where they are kept over restarts, and `settings` are
    the backend's: under others the same site may have said something else."""

    def __init__(self, name: str, ask: Ask, clock: Clock, file: Path, settings: object) -> None:
        self._name, self._ask, self._clock, self._file = name, ask, clock, file
        self._made_by = _digest(settings)
        self._lock = threading.Lock()
        self._known: _Known | None = None
        self._asked: _Asked | None = None
        self._kept: BackendFacts | None = None

    @property
    def is_known(self) -> bool:
        """Whether `get` answers without waiting for long."""
        with self._lock:
            return self._known is not None

    def get(self, *, may_ask: bool, patience_s: float | None = None) -> BackendFacts:
        """The facts, at most LIFE_S old where the site answers within `patience_s` (PATIENCE_S), else as told last.

        `may_ask` False: the site does not answer now. Raises what `ask` raises, and SchedulerUnreachable, only where
        nothing was ever told.
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
                message = f"{self._name} has not said within {FIRST_PATIENCE_S:g} s what its site is"
                raise SchedulerUnreachable(message) from None
            return known.facts
        except (SchedulerUnreachable, InvalidRequest):
            if known is None:
                raise
            return known.facts

    def age(self) -> None:
        """Let the next one who asks get newer facts if the site answers, unless those that are known are from just now:
        who asks for what there is not, again and again, is no reason to ask the site as often."""
        now = self._clock.monotonic()
        with self._lock:
            if self._known is not None and now - self._known.at >= YOUNG_S:
                self._known = _Known(self._known.facts, now - LIFE_S)

    def _begin(self) -> _Asked:
        """The question that is under way; asked now if none is. The lock is held."""
        if self._asked is None:
            self._asked = _Asked(Future(), time.monotonic())
            name = f"facts-{self._name}"
            threading.Thread(target=self._run, args=(self._asked,), name=name, daemon=True).start()
        return self._asked

    def _run(self, asked: _Asked) -> None:
        try:
            facts = self._ask()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for those who wait
            with self._lock:
                self._asked = None
            asked.answer.set_exception(error)
            return
        self._keep(facts)
        with self._lock:
            self._known, self._asked = _Known(facts, self._clock.monotonic()), None
        asked.answer.set_result(facts)

    def _keep(self, facts: BackendFacts) -> None:
        """A courtesy to a later life of the daemon."""
        if facts == self._kept:
            return
        cell = {"format": FORMAT, "made_by": self._made_by, "facts": to_plain(facts)}
        try:
            write_whole(self._file, json.dumps(cell) + "\n")
        except OSError as error:
            log.warning("what %s is could not be kept in %s: %s", self._name, self._file, error)
            return
        self._kept = facts

    def _recall(self) -> BackendFacts | None:
        """What was told to an earlier life of this release with these settings."""
        try:
            cell = json.loads(read_whole(str(self._file), MAX_TEXT_BYTES))
            if cell["format"] != FORMAT or cell["made_by"] != self._made_by:
                return None
            facts = from_plain(BackendFacts, cell["facts"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):  # the record is missing or damaged
            return None
        log.info("what %s is was told to an earlier daemon, in %s", self._name, self._file)
        return facts


def _digest(settings: object) -> str:
    text = json.dumps([__version__, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

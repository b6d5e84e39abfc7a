"""A scheduler that outlives its daemons: one process, one thread, jobs that are generators.

It loses replies, delivers twice, and lets requests land late, within the time that it promises (`LIFE_S`) and, now
and then, after it: what then runs twice is for the claim to prevent.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from ffdl_batch.domain.job import is_token
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.observation import EndCause, Phase
from tests.crash.fuzz.companions import Message, read_line, send_line
from tests.crash.fuzz.heads import Fate, Head, HeadEnd, Run, run_head
from tests.crash.fuzz.steps import Plan, Steps

LIFE_S = 0.3
"""How long a request that was sent may take to land, by the cluster's word."""
START_S, QUEUED_S, QUEUED = 0.06, 0.6, 0.2
"""A job waits at most so long; those of a fifth, in a queue, for longer."""
REQUEST_S = 2.0
FIRST_ID = 1000
LATE, TOO_LATE, LOST, TWICE, DOWN = 0.03, 0.06, 0.10, 0.15, 0.155
"""Of all submissions, each up to the one before: what lands late, what lands after its life, what lands and is not
answered, what lands twice, what is not taken."""
NO_SUCCESSOR = 0.1
"""Of the attempts that a head began, those whose submission is lost."""


@dataclass(slots=True)
class Entry:
    """A job as the cluster remembers it."""

    native: str
    token: str
    attempt: AttemptDir
    fate: Fate
    submitted_at: float
    phase: Phase = Phase.PENDING
    end: EndCause | None = None
    exit_code: int = 0
    restarts: int = 0
    nodes: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    signals: set[str] = field(default_factory=set)
    head: Head | None = None

    def shown(self) -> Message:
        """The fields of an observation."""
        return {
            "phase": self.phase.value, "native_state": (self.end or self.phase).upper(),
            "end": self.end.value if self.end else None, "exit_code": self.exit_code, "nodes": self.nodes,
            "restarts": self.restarts, "submitted_at": self.submitted_at, "started_at": self.started_at,
            "ended_at": self.ended_at, "name": self.token, "reason": "",
        }  # fmt: skip


class Cluster:
    """Serves one world. `place` is the socket for its daemons."""

    def __init__(self, place: Path, seed: int) -> None:
        self._chance = Random(seed)
        self._entries: dict[str, Entry] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ids = count(FIRST_ID)
        self._steps = Steps(Plan(), _nothing, _nothing_at_all)
        self._heard: list[str] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(os.fspath(place))
        self._listening.listen(64)

    def serve(self, parent: socket.socket) -> None:
        """Until the parent is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            selector.register(parent, selectors.EVENT_READ)
            while True:
                left = self._due[0][0] - time.monotonic() if self._due else None
                for key, _ in selector.select(None if left is None else max(0.0, left)):
                    if key.fileobj is parent:
                        if not self._obey(parent):
                            return
                    else:
                        self._answer()
                while self._due and self._due[0][0] <= time.monotonic():
                    heapq.heappop(self._due)[2]()

    # ------------------------------------------------------------------------------------------- the parent

    def _obey(self, parent: socket.socket) -> bool:
        """One order of the parent; False where it is gone."""
        order = read_line(parent)
        if order is None:
            return False
        heard, self._heard = self._heard, []
        plan = Plan(frozenset(order["targets"]), order["passing"])
        self._steps = Steps(plan, self._heard.append, _killer(order["pid"]))
        send_line(parent, {"heard": heard})
        return True

    def _reached(self, name: str) -> None:
        self._steps.reached(f"cluster {name}")

    # ----------------------------------------------------------------------------------------- the daemons

    def _answer(self) -> None:
        """One request of a daemon, which may die while it speaks or listens."""
        connection, _ = self._listening.accept()
        with connection:
            connection.settimeout(REQUEST_S)
            try:
                request = read_line(connection)
                if request is not None:
                    send_line(connection, self._do(request))
            except ConnectionError as error:
                print(f"a daemon went away: {error}", file=sys.stderr)

    def _do(self, request: Message) -> Message:
        verb = request["do"]
        if verb == "submit":
            return self._submit(request)
        if verb == "find":
            return {"ids": [one.native for one in self._entries.values() if one.token == request["token"]]}
        if verb == "observe":
            known = {native: self._entries[native].shown() for native in request["ids"] if native in self._entries}
            return {"seen": known}
        if verb == "is_forgotten":
            return {"ids": [native for native in request["ids"] if native not in self._entries]}
        entry = self._entries.get(request["id"])
        if entry is not None and entry.phase is not Phase.ENDED and verb != "avoid":
            self._disturb(entry, verb)
        return {}

    def _disturb(self, entry: Entry, verb: str) -> None:
        if entry.phase is Phase.PENDING:
            if verb in ("cancel", "withdraw"):
                self._end(entry, HeadEnd(EndCause.CANCELLED))
        elif verb in ("cancel", "signal"):
            entry.signals.add("TERM" if verb == "cancel" else "URG")

    def _submit(self, request: Message) -> Message:
        token, attempt, fate = request["token"], AttemptDir(request["attempt"]), Fate(request["fate"])
        lot = self._chance.random()
        if lot < LATE:
            self._after(self._chance.uniform(0.0, LIFE_S * 0.8), lambda: self._land(token, attempt, fate))
            return {"uncertain": "it is under way"}
        if lot < TOO_LATE:
            self._after(LIFE_S + self._chance.uniform(0.3, 1.0), lambda: self._land(token, attempt, fate))
            return {"uncertain": "it is under way for longer than it may be"}
        if TWICE <= lot < DOWN:
            return {"unreachable": "not now"}
        native = self._accept(token, attempt, fate)
        if LOST <= lot < TWICE:
            self._accept(token, attempt, fate)
        self._reached("request landed")
        return {"uncertain": "the reply was lost"} if lot < LOST else {"id": native}

    # -------------------------------------------------------------------------------------------- the jobs

    def _accept(self, token: str, attempt: AttemptDir, fate: Fate) -> str:
        assert is_token(token), token
        entry = Entry(str(next(self._ids)), token, attempt, fate, time.time())
        self._entries[entry.native] = entry
        longest = QUEUED_S if self._chance.random() < QUEUED else START_S
        self._after(self._chance.uniform(0.0, longest), lambda: self._start(entry))
        return entry.native

    def _land(self, token: str, attempt: AttemptDir, fate: Fate) -> None:
        """Accept what nobody waits for an answer to."""
        self._accept(token, attempt, fate)

    def _start(self, entry: Entry) -> None:
        if entry.phase is not Phase.PENDING:
            return
        entry.phase, entry.nodes, entry.started_at = Phase.RUNNING, "n1", time.time()
        run = Run(
            entry.native, entry.restarts, entry.attempt, entry.fate, self._chance, self._reached, entry.signals
        )  # fmt: skip
        entry.head = run_head(run)
        self._advance(entry)

    def _advance(self, entry: Entry) -> None:
        assert entry.head is not None
        try:
            pause = next(entry.head)
        except StopIteration as stopped:
            self._end(entry, stopped.value)
        else:
            self._after(pause, lambda: self._advance(entry))

    def _end(self, entry: Entry, end: HeadEnd) -> None:
        entry.head = None
        if end.starts_anew:
            entry.phase, entry.nodes, entry.started_at = Phase.PENDING, "", None
            entry.restarts += 1
            self._after(self._chance.uniform(0.0, START_S), lambda: self._start(entry))
            return
        entry.phase, entry.end, entry.exit_code, entry.ended_at = Phase.ENDED, end.cause, end.exit_code, time.time()
        if entry.fate is Fate.FORGOTTEN:
            self._after(START_S, lambda: self._forget(entry))
        if end.successor is not None and self._chance.random() >= NO_SUCCESSOR:
            attempt = end.successor
            token = f"{entry.token.rpartition('-')[0]}-{attempt.path.rpartition('-')[2]}"
            self._after(self._chance.uniform(0.0, START_S), lambda: self._land(token, attempt, Fate.WORKS))

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.native]

    def _after(self, pause_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + pause_s, next(self._order), act))


def _nothing(_text: str) -> None:
    return


def _nothing_at_all() -> None:
    return


def _killer(pid: int) -> Callable[[], None]:
    """Kills a daemon of the parent's, which collects it only after it has taken the plan back: the id stays its own."""
    return (lambda: os.kill(pid, signal.SIGKILL)) if pid else _nothing_at_all

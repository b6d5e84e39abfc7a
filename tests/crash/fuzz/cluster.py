"""A scheduler that outlives its daemons: one process, one thread, jobs that are generators.

It loses replies, delivers twice, and lets requests land late, within the time that it promises (`LIFE_S`) and, now
and then, after it: what then runs twice is for the claim to prevent. What is sent again although it had landed in time
is noted in the file AGAIN.

A native array is known by its own name and the numbers of its tasks, as in Slurm; only the marks of attempts tell which
task is whose.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from itertools import count
from pathlib import Path
from random import Random

from ffdl_batch.attempt.element_files import NoElement, find_task
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.controller.attempt_commands import EXIT_NO_TASK
from ffdl_batch.domain.job.array import parse_chunk_name
from ffdl_batch.domain.job.job import is_token
from ffdl_batch.domain.outcome.observation import EndCause, Phase
from ffdl_batch.host.fast_dataclass import dataclass
from tests.crash.fuzz.companions import Message, read_line, send_line
from tests.crash.fuzz.heads import CANCEL, Fate, Head, HeadEnd, Run, run_head
from tests.crash.fuzz.steps import Plan, Steps

LIFE_S = 0.3
"""How long a request that was sent may take to land, by the cluster's word."""
START_S, QUEUED_S, QUEUED = 0.06, 0.6, 0.2
"""A job waits at most so long; those of a fifth, in a queue, for longer."""
REQUEST_S = 60.0
CLOCK_S = 0.02
"""How much times of files lag behind the clock, at most."""
FIRST_ID = 1000
LATE, TOO_LATE, LOST, TWICE, DOWN = 0.03, 0.06, 0.10, 0.15, 0.155
"""Of all submissions, each up to the one before: what lands late, what lands after its life, what lands and is not
answered, what lands twice, what is not taken."""
TOO_MANY, REFUSED = 0.20, 0.23
"""The same of native arrays, which the cluster has no room for now, or does not take."""
NOT_NOW = 0.3
"""Of the questions for several attempts, those that are not answered now."""
AGAIN = "sent-again"
NO_SUCCESSOR = 0.1
"""Of the attempts that a head began, those whose submission is lost."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is submitted: one attempt, and its number in its array ("" = it is in none)."""

    token: str
    attempt: AttemptDir
    task: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is accepted as a whole. `asked_at` is when its attempts were marked; `limit` of its tasks run at once."""

    name: str
    tasks: Sequence[Task]
    fate: Fate
    asked_at: float
    limit: int | None = None


@dataclass(slots=True)
class Array:
    """The tasks of one native array, and how many of them may run at once."""

    limit: int
    tasks: list[Entry] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether no other task may start now."""
        return sum(one.phase is Phase.RUNNING for one in self.tasks) >= self.limit


@dataclass(slots=True)
class Entry:
    """A job as the cluster remembers it. `name` is what it was called when it was submitted, `task` "" where it is no
    task of an array. `in_time`: it landed within the life of its request."""

    native: str
    name: str
    task: str
    token: str
    attempt: AttemptDir
    fate: Fate
    submitted_at: float
    in_time: bool
    array: Array | None = None
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
        self._steps = Steps(Plan(), _nothing, _nothing)
        self._heard: list[str] = []
        self._again = place.with_name(AGAIN)
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
                        self._let_happen()  # what was due before the question is in the answer
                        self._answer()
                self._let_happen()

    def _let_happen(self) -> None:
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
            return self._submit(_submission(request))
        if verb == "find":
            if len(request["wanted"]) > 1 and self._chance.random() < NOT_NOW:
                return {"not now": "an earlier request is under way"}
            return {"ids": {token: self._find(token, tasks) for token, tasks in request["wanted"].items()}}
        if verb == "observe":
            known = {native: self._entries[native].shown() for native in request["ids"] if native in self._entries}
            return {"seen": known}
        if verb == "find_absent":
            return {"ids": [native for native in request["ids"] if native not in self._entries]}
        for native in request["ids"]:
            entry = self._entries.get(native)
            if entry is not None and entry.phase is not Phase.ENDED and verb != "avoid":
                self._disturb(entry, verb, request.get("signal", ""))
        return {}

    def _find(self, token: str, tasks: Collection[Sequence[str]]) -> list[str]:
        """Jobs that were submitted under the name `token`, or as one of `tasks` (an array's name and a number)."""
        names = {(token, ""), *((name, task) for name, task in tasks)}
        return [one.native for one in self._entries.values() if (one.name, one.task) in names]

    def _disturb(self, entry: Entry, verb: str, signal: str) -> None:
        if entry.phase is Phase.PENDING:
            if verb in ("cancel", "withdraw"):
                self._end(entry, HeadEnd(EndCause.CANCELLED))
        elif verb in ("cancel", "signal"):
            entry.signals.add(signal or CANCEL)

    def _submit(self, wanted: Submission) -> Message:
        self._note_again(wanted)
        lot = self._chance.random()
        if lot < LATE:
            self._after(self._chance.uniform(0.0, LIFE_S * 0.8), lambda: self._land(wanted))
            return {"uncertain": "it is under way"}
        if lot < TOO_LATE:
            self._after(LIFE_S + self._chance.uniform(0.3, 1.0), lambda: self._land(wanted))
            return {"uncertain": "it is under way for longer than it may be"}
        if TWICE <= lot < DOWN:
            return {"unreachable": "not now"}
        if wanted.tasks[0].task and DOWN <= lot < REFUSED:
            return {"too many": "no room for so many"} if lot < TOO_MANY else {"refused": "no arrays today"}
        native = self._accept(wanted)
        if LOST <= lot < TWICE:
            self._accept(wanted)
        self._reached("request landed")
        return {"uncertain": "the reply was lost"} if lot < LOST else {"id": native}

    def _note_again(self, wanted: Submission) -> None:
        """What is asked for although a request that landed in time had asked for it: whoever looked had to find it."""
        landed = {entry.token for entry in self._entries.values() if entry.in_time}
        again = [task.token for task in wanted.tasks if task.token in landed]
        if again:
            with self._again.open("a", encoding="utf-8") as file:
                file.write("".join(f"{token}\n" for token in again))

    # -------------------------------------------------------------------------------------------- the jobs

    def _accept(self, wanted: Submission) -> str:
        number, now = next(self._ids), time.time()
        array = Array(wanted.limit) if wanted.limit is not None else None
        for one in wanted.tasks:
            assert is_token(one.token), one.token
            native = f"{number}_{one.task}" if one.task else str(number)
            in_time = now - wanted.asked_at < LIFE_S - CLOCK_S
            entry = Entry(native, wanted.name, one.task, one.token, one.attempt, wanted.fate, now, in_time, array)
            self._entries[native] = entry
            if array is not None:
                array.tasks.append(entry)
            self._await_start(entry, QUEUED_S if self._chance.random() < QUEUED else START_S)
        return str(number)

    def _await_start(self, entry: Entry, longest_s: float) -> None:
        self._after(self._chance.uniform(0.0, longest_s), lambda: self._start(entry))

    def _land(self, wanted: Submission) -> None:
        """Accept what nobody waits for an answer to."""
        self._accept(wanted)

    def _start(self, entry: Entry) -> None:
        if entry.phase is not Phase.PENDING:
            return
        if entry.array is not None and entry.array.is_full:
            self._await_start(entry, START_S)
            return
        entry.phase, entry.nodes, entry.started_at = Phase.RUNNING, "n1", time.time()
        run = Run(
            entry.native, entry.restarts, entry.attempt, entry.fate, self._chance, self._reached, entry.signals
        )  # fmt: skip
        if entry.task and not find_directory(entry):
            self._end(entry, HeadEnd(EndCause.FAILURE, EXIT_NO_TASK))
            return
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
            self._await_start(entry, START_S)
            return
        entry.phase, entry.end, entry.exit_code, entry.ended_at = Phase.ENDED, end.cause, end.exit_code, time.time()
        if entry.fate is Fate.FORGOTTEN:
            self._after(START_S, lambda: self._forget(entry))
        if end.successor is not None and self._chance.random() >= NO_SUCCESSOR:
            attempt = end.successor
            token = f"{entry.token.rpartition('-')[0]}-{attempt.path.rpartition('-')[2]}"
            wanted = Submission(token, [Task(token, attempt)], entry.fate.of_next(), _marked_at(attempt))
            self._after(self._chance.uniform(0.0, START_S), lambda: self._land(wanted))

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.native]

    def _after(self, pause_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + pause_s, next(self._order), act))


def _submission(request: Message) -> Submission:
    tasks = [Task(token, AttemptDir(path), task) for token, path, task in request["tasks"]]
    name = request["name"]
    chunk = _chunk_of(name, tasks[0].attempt)
    asked_at = _marked_at(chunk) if chunk is not None else min(_marked_at(one.attempt) for one in tasks)
    return Submission(name, tasks, Fate(request["fate"]), asked_at, request["limit"])


def _chunk_of(name: str, attempt: AttemptDir) -> AttemptDir | None:
    """The directory of the native array `name`, in the tree of one of its attempts; None if it is no native array."""
    named = parse_chunk_name(name)
    return Root(str(Path(attempt.path).parents[2])).array(named[0]).chunk(named[1]) if named is not None else None


def find_directory(entry: Entry) -> bool:
    """Make the directory of a task as its head does; whether it has one."""
    chunk = _chunk_of(entry.name, entry.attempt)
    assert chunk is not None
    try:
        return find_task(chunk.tasks, entry.task) == entry.attempt
    except NoElement:
        return False


def _marked_at(attempt: AttemptDir) -> float:
    """When whoever sends it said so; that it may be asked for again is counted from then on."""
    return Path(attempt.submit_begun).stat().st_mtime


def _nothing(_text: str) -> None:
    return


def _killer(pid: int) -> Callable[[str], None]:
    """Kills a daemon of the parent's, which collects it only after it has taken the plan back: the id stays its own."""
    return (lambda _step: os.kill(pid, signal.SIGKILL)) if pid else _nothing

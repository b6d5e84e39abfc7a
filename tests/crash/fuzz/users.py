"""Real clients in a process of their own: each thread is a user who submits, looks, halts, resumes and cancels.

Every submission is sent again with its key until it is answered, as a client does whose daemon died under it. So no job
stays unacknowledged for good, and one that nobody was told of must never have been executed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from ffdl_batch.client import Client, ClientError
from ffdl_batch.client.api import JobFilter
from ffdl_batch.client.errors import DaemonUnreachable, RequestRefused, UnknownJob, WaitTimedOut
from ffdl_batch.client.manifest import read_manifest
from ffdl_batch.client.start import Dialling
from ffdl_batch.client.submission import Wanted, build_submission
from ffdl_batch.client.wire import Channel
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job_state import TERMINAL, JobState
from ffdl_batch.domain.views import JobView
from tests.crash.fuzz.companions import read_line, send_line
from tests.crash.fuzz.diary import Diary, Note

V = TypeVar("V")
DIAL_S = 60.0
"""How long somebody waits for the next daemon."""
DIAL_PAUSE_S = 0.005
FRESH = 0.1
"""How often a user begins a new command, with a connection of its own."""
VERBS = {"submit": 6, "list": 2, "get": 3, "events": 1, "wait": 1, "halt": 4, "resume": 4, "cancel": 2, "archive": 1,
         "depend": 1, "regret": 1}  # fmt: skip
"""How often each is done, beside each other."""
OBEDIENCE = 0.7
"""How often a user does what is preferred."""
EXPORTING = 0.3
LISTED = 30
RECENT = 20
REGRET_S = 0.3
FINISH_PAUSE_S = 0.1
RESUMABLE = {JobState.HALTED.value, JobState.FAILED.value}
ENDED = {state.value for state in TERMINAL}


@dataclass(frozen=True, slots=True)
class Habits:
    """How the users of one world are. `manifests` are by fate, `live` is how many jobs one user has at once at most."""

    threads: int
    live: int
    pause_s: float
    manifests: Mapping[str, str]
    fates: Mapping[str, int]
    environ: Mapping[str, str]
    directory: str


@dataclass(frozen=True, slots=True)
class Patient(Dialling):
    """Starts no daemon, but waits for one."""

    def dial(self) -> Channel:
        """See :class:`~ffdl_batch.client.start.Dialling`."""
        deadline = time.monotonic() + DIAL_S
        while True:
            try:
                return Dialling.dial(self)
            except DaemonUnreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(DIAL_PAUSE_S)


@dataclass
class User:
    """One of them. `jobs` are those that they were told of, with the state that they saw last; a cancelled one is left
    alone."""

    number: int
    habits: Habits
    diary: Diary
    chance: Random
    jobs: dict[str, str] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    client: Client | None = None
    models: int = 0

    def act(self, prefer: str) -> None:
        """Do one thing: what is preferred where it is possible, else what comes to mind."""
        if self.client is None or self.chance.random() < FRESH:
            self._renew()
        wish = self.chance.choices(list(VERBS), list(VERBS.values()))[0]
        if prefer and self.chance.random() < OBEDIENCE:
            wish = prefer
        verb, *details = wish.split()
        getattr(self, f"_{verb}")(*details)

    def finish(self, limit_s: float) -> None:
        """Let every job come to an end, what was halted goes on first; whatever has not ended then is judged so."""
        self._renew()
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and (unfinished := self._unfinished()):
            for job_id in unfinished:
                with contextlib.suppress(UnknownJob):  # the diary has it
                    self._look(lambda client, one: client.get(one), [job_id])
                    if self.jobs[job_id] == JobState.HALTED:
                        self._wish("resume", job_id)
            time.sleep(FINISH_PAUSE_S)

    def _unfinished(self) -> list[str]:
        """Jobs that have not ended, or are halted and may go on."""
        halted = {one for one, state in self.jobs.items() if state == JobState.HALTED} - self.given_up
        return [one for one, state in self.jobs.items() if state not in ENDED or one in halted]

    # ------------------------------------------------------------------------------------------- the verbs

    def _submit(self, fate: str = "", dependency: str = "") -> None:
        if len(self._live()) >= self.habits.live:
            self._list()
            return
        if fate not in self.habits.fates:
            fate = self.chance.choices(list(self.habits.fates), list(self.habits.fates.values()))[0]
        options = {"dependency": dependency} if dependency else {}
        environ = {"USER_NUMBER": str(self.number)} if self.chance.random() < EXPORTING else {}
        self._send(fate, options | ({"export": ",".join(environ)} if environ else {}), environ)

    def _depend(self) -> None:
        """A job that waits for another one."""
        live = self._live()
        self._submit(dependency=f"afterany:{self.chance.choice(live)}" if live else "")

    def _regret(self) -> None:
        """Submit, and change one's mind: at once, when the job is in the queue, or when it runs."""
        before = set(self.jobs)
        self._submit()
        time.sleep(self.chance.uniform(0.0, REGRET_S))
        for job_id in self.jobs.keys() - before:
            self._wish(self.chance.choice(("halt", "cancel")), job_id)

    def _live(self) -> list[str]:
        return [job_id for job_id, state in self.jobs.items() if state not in ENDED]

    def _send(self, fate: str, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        digest = self._ask(lambda client: client.upload(self._model()))
        wanted = Wanted(options, {}, environ)
        manifest = read_manifest(self.habits.manifests[fate])
        submissions = [build_submission(manifest, digest, wanted) for _ in range(self.chance.choice((1, 1, 2)))]
        while submissions:
            results = self._ask(partial(Client.send, submissions=submissions))
            again = []
            for submission, result in zip(submissions, results, strict=True):
                if result.problem is None:
                    self.diary.write(Note("submit", result.id, answered=True))
                    self.jobs[result.id] = JobState.PENDING
                elif result.problem.exit_code == ExitCode.TRY_AGAIN:
                    again.append(submission)
                else:
                    self.diary.write(Note("submit", fault=f"refused: {result.problem.message}"))
            submissions = again

    def _archive(self) -> None:
        """A model of a new content."""
        self.models += 1
        self._model().joinpath("train.py").write_text(f"print({self.number}, {self.models})\n", encoding="utf-8")
        self._ask(lambda client: client.upload(self._model()))

    def _model(self) -> Path:
        directory = Path(self.habits.directory, f"model-{self.number}")
        if not directory.exists():
            directory.mkdir()
            (directory / "train.py").write_text(f"print({self.number})\n", encoding="utf-8")
        return directory

    def _list(self) -> None:
        """The newest ones, and one of the older ones that had not ended."""
        known = {job.id: job.state for job in self._ask(lambda client: client.list(JobFilter(limit=LISTED)))}
        self.jobs |= {job_id: known[job_id] for job_id in self.jobs if job_id in known}
        older = [job_id for job_id, state in self.jobs.items() if state not in ENDED and job_id not in known]
        self._look(lambda client, job_id: client.get(job_id), older[:1])

    def _get(self) -> None:
        self._look(lambda client, job_id: client.get(job_id))

    def _wait(self) -> None:
        """Long polling, of a job that has ended more often than not: it must not keep this user."""
        ended = [job_id for job_id, state in self.jobs.items() if state in ENDED]
        with contextlib.suppress(WaitTimedOut):  # it was resumed
            self._look(lambda client, job_id: client.wait(job_id, timeout_s=0.05), ended)

    def _events(self) -> None:
        if self.jobs:
            job_id = self.chance.choice(list(self.jobs))
            self._ask(lambda client: list(client.events(job_id)), job_id)

    def _look(self, look: Callable[[Client, str], JobView], among: list[str] | None = None) -> None:
        names = list(self.jobs) if among is None else among
        if names:
            job_id = self.chance.choice(names[-RECENT:])
            seen = self._ask(lambda client: look(client, job_id), job_id)
            self.jobs[job_id] = seen.state

    def _halt(self) -> None:
        self._wish_of("halt", lambda state: state not in ENDED)

    def _cancel(self) -> None:
        self._wish_of("cancel", lambda state: state not in ENDED)

    def _resume(self) -> None:
        self._wish_of("resume", lambda state: state in RESUMABLE)

    def _wish_of(self, verb: str, fits: Callable[[str], bool]) -> None:
        fitting = [job_id for job_id, state in self.jobs.items() if fits(state) and job_id not in self.given_up]
        if fitting:
            self._wish(verb, self.chance.choice(fitting[-5:]))
        else:
            self._list()

    def _wish(self, verb: str, job_id: str) -> None:
        """Ask, and note the answer. Whoever sees a lost answer cannot know: another resume may be refused then."""
        self.diary.write(Note(verb, job_id))
        if verb == "cancel":
            self.given_up.add(job_id)
        try:
            seen = self._ask(lambda client: getattr(client, verb)(job_id), job_id)
        except RequestRefused as refused:
            if verb != "resume":
                self.diary.write(Note(verb, job_id, fault=f"refused: {refused}"))
            self._look(lambda client, one: client.get(one), [job_id])
            return
        self.jobs[job_id] = seen.state
        if verb == "resume" or seen.state not in ENDED:
            self.diary.write(Note(verb, job_id, answered=True))

    # -------------------------------------------------------------------------------------------- asking

    def _ask(self, call: Callable[[Client], V], job_id: str = "") -> V:
        """The answer, however many daemons it takes. A job that was acknowledged and is unknown is a fault."""
        while True:
            assert self.client is not None
            try:
                return call(self.client)
            except DaemonUnreachable:
                self._renew()
            except UnknownJob:
                self.diary.write(Note("lookup", job_id, fault="it was acknowledged, and the daemon does not know it"))
                self.jobs.pop(job_id, None)
                raise
            except ClientError as error:
                if error.problem.exit_code != ExitCode.TRY_AGAIN:
                    raise
                time.sleep(DIAL_PAUSE_S)

    def _renew(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client = Client(dialling=Patient(environ=self.habits.environ, start=False))


class Users:
    """All users of one world. `prefer` is what the parent would like to see now."""

    def __init__(self, habits: Habits, diary: Diary, seed: int) -> None:
        self._habits, self._diary = habits, diary
        self._people = [User(number, habits, diary, Random(f"{seed}/{number}")) for number in range(habits.threads)]
        self._prefer = ""
        self._stop = threading.Event()

    def serve(self, parent: socket.socket) -> None:
        """Work until the parent says that it is enough, then finish, and say so."""
        threads = [threading.Thread(target=self._work, args=(user,)) for user in self._people]
        for thread in threads:
            thread.start()
        while (order := read_line(parent)) is not None:
            self._prefer = order.get("prefer", "")
            if "finish_s" in order:
                self._stop.set()
                _join(threads)
                _join([threading.Thread(target=self._finish, args=(one, order["finish_s"])) for one in self._people])
            send_line(parent, {"jobs": sum(len(user.jobs) for user in self._people)})

    def _work(self, user: User) -> None:
        while not self._stop.is_set():
            try:
                user.act(self._prefer)
            except UnknownJob:
                continue  # the diary has it
            except Exception as error:
                self._diary.write(Note("act", fault=f"user {user.number} failed: {type(error).__name__}: {error}"))
                raise
            self._stop.wait(user.chance.uniform(0.0, 2 * self._habits.pause_s))

    def _finish(self, user: User, limit_s: float) -> None:
        try:
            user.finish(limit_s)
        except Exception as error:
            self._diary.write(Note("finish", fault=f"user {user.number} failed: {type(error).__name__}: {error}"))
            raise


def _join(threads: list[threading.Thread]) -> None:
    """Wait for threads, those that have not begun too."""
    for thread in threads:
        if thread.ident is None:
            thread.start()
    for thread in threads:
        thread.join()

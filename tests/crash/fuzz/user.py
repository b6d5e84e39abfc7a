"""One user with a real client, who submits jobs and arrays, looks, halts, resumes, cancels and makes drills.

Every submission is sent again with its key until it is answered, as a client does whose daemon died under it. So no job
stays unacknowledged for good, and one that nobody was told of must never have been executed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from ffdl_batch.client import Client, ClientError
from ffdl_batch.client.api import JobFilter
from ffdl_batch.client.errors import DaemonUnreachable, RequestRefused, UnknownJob, WaitTimedOut
from ffdl_batch.client.submissions.manifest_source import read_manifest
from ffdl_batch.client.submissions.submission_builder import Wanted, build_submission
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.submission import SubmissionResult
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import TERMINAL, JobState
from ffdl_batch.host.fast_dataclass import dataclass
from tests.crash.fuzz.diary import Diary, Note
from tests.crash.fuzz.habits import DIAL_PAUSE_S, LASTING, SWEEP, SWEPT, Habits, Patient

V = TypeVar("V")
FRESH = 0.1
"""How often a user begins a new command, with a connection of its own."""
OBEDIENCE = 0.7
"""How often a user does what is preferred."""
EXPORTING = 0.3
LISTED = 30
RECENT = 20
REGRET_S = 0.3
AGAIN_S = 0.15
"""How long after a drill another one may be made on the same job, which may have ended by the first."""
FINISH_PAUSE_S = 0.1
MOST_ELEMENTS, MORE_LIVE = 5, 3
"""Of an array; and how many jobs more than usual one user has with one."""
DRILLS = ("halt", "timeout", "preempt", "node-fail")
RESUMABLE = {JobState.HALTED.value, JobState.FAILED.value}
ENDED = {state.value for state in TERMINAL}


@dataclass
class User:
    """One of them. `jobs` are those that they were told of, with the state that they saw last; a cancelled one is left
    alone. `arrays` are the ids of arrays, with those of their jobs by index."""

    number: int
    habits: Habits
    diary: Diary
    chance: Random
    jobs: dict[str, str] = field(default_factory=dict)
    abandoned: set[str] = field(default_factory=set)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    client: Client | None = None
    models: int = 0

    def act(self, prefer: str) -> None:
        """Do one thing: what is preferred where it is possible, else what comes to mind."""
        if self.client is None or self.chance.random() < FRESH:
            self._renew()
        request = self.chance.choices(list(self.habits.verbs), list(self.habits.verbs.values()))[0]
        if prefer.partition(" ")[0] in self.habits.verbs and self.chance.random() < OBEDIENCE:
            request = prefer
        verb, *details = request.split()
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
                        self._request("resume", job_id)
            time.sleep(FINISH_PAUSE_S)

    def _unfinished(self) -> list[str]:
        """Jobs that have not ended, or are halted and may go on."""
        halted = {one for one, state in self.jobs.items() if state == JobState.HALTED} - self.abandoned
        return [one for one, state in self.jobs.items() if state not in ENDED or one in halted]

    # ------------------------------------------------------------------------------------------- the verbs

    def _submit(self, fate: str = "", dependency: str = "") -> None:
        if len(self._live()) >= self.habits.live:
            self._list()
            return
        if fate not in self.habits.fates:
            fate = self.chance.choices(list(self.habits.fates), list(self.habits.fates.values()))[0]
        self._send(fate, {"dependency": dependency} if dependency else {})

    def _array(self, fate: str = "") -> None:
        """A few jobs as one array: by an option, with a limit or without, or by a sweep in the manifest."""
        size = self.chance.randint(2, MOST_ELEMENTS)
        if len(self._live()) + size > self.habits.live + MORE_LIVE:
            self._list()
        elif not fate and self.chance.random() < 1 / 3:
            self._send(SWEEP, {}, SWEPT)
        else:
            limit = self.chance.choice(("", "", "%1", "%2"))
            fate = fate or self.chance.choices(list(self.habits.fates), list(self.habits.fates.values()))[0]
            self._send(fate, {"array": f"0-{size - 1}{limit}"}, size)

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
            self._request(self.chance.choice(("halt", "cancel")), job_id)

    def _live(self) -> list[str]:
        return [job_id for job_id, state in self.jobs.items() if state not in ENDED]

    def _send(self, manifest: str, options: Mapping[str, str], elements: int = 0) -> None:
        """Submit until there is an answer; `elements` is how many jobs an array is to have (0 = it is none)."""
        environ = {"USER_NUMBER": str(self.number)} if self.chance.random() < EXPORTING else {}
        exported = {"export": ",".join(environ)} if environ else {}
        digest = self._ask(lambda client: client.upload(self._model()))
        wanted = Wanted({**options, **exported}, {}, environ)
        text = read_manifest(self.habits.manifests[manifest])
        times = 1 if elements else self.chance.choice((1, 1, 2))
        submissions = [build_submission(text, digest, wanted) for _ in range(times)]
        while submissions:
            results = self._ask(partial(Client.send, submissions=submissions))
            again = []
            for submission, result in zip(submissions, results, strict=True):
                if result.problem is None:
                    self._was_told(result, elements)
                elif result.problem.exit_code == ExitCode.TRY_AGAIN:
                    again.append(submission)
                else:
                    self.diary.write(Note("submit", fault=f"refused: {result.problem.message}"))
            submissions = again

    def _was_told(self, result: SubmissionResult, elements: int) -> None:
        """All jobs of a submission that was accepted are acknowledged."""
        if len(result.elements) != elements:
            told = f"an array of {elements} was accepted with {len(result.elements)} jobs"
            self.diary.write(Note("submit", result.id, fault=told))
        for job_id in result.elements or (result.id,):
            self.diary.write(Note("submit", job_id, answered=True))
            self.jobs[job_id] = JobState.PENDING
        if elements:
            self.arrays[result.id] = result.elements

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
        self._request_of("halt", lambda state: state not in ENDED)

    def _cancel(self) -> None:
        self._request_of("cancel", lambda state: state not in ENDED)

    def _resume(self) -> None:
        self._request_of("resume", lambda state: state in RESUMABLE)

    def _request_of(self, verb: str, fits: Callable[[str], bool]) -> None:
        fitting = [job_id for job_id, state in self.jobs.items() if fits(state) and job_id not in self.abandoned]
        if fitting:
            self._request(verb, self.chance.choice(fitting[-5:]))
        else:
            self._list()

    def _request(self, verb: str, job_id: str) -> None:
        """Ask, and note the answer. Whoever sees a lost answer cannot know: another resume may be refused then."""
        self.diary.write(Note(verb, job_id))
        if verb == "cancel":
            self.abandoned.add(job_id)
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

    # ---------------------------------------------------------------------------------- arrays and drills

    def _array_get(self) -> None:
        """All jobs of an array, which are those that the submission was answered with."""
        if not self.arrays:
            self._array()
            return
        array = self.chance.choice(list(self.arrays)[-RECENT:])
        self._ask(lambda client: client.arrays.get(array), array)
        self._see_elements(array)

    def _see_elements(self, array: str) -> None:
        seen = {job.id: job.state for job in self._ask(lambda client: client.arrays.elements(array), array)}
        if tuple(seen) != self.arrays[array]:
            self.diary.write(Note("elements", array, fault=f"it has {list(seen)}, not {self.arrays[array]}"))
        self.jobs |= seen

    def _array_halt(self) -> None:
        self._request_of_array("halt")

    def _array_cancel(self) -> None:
        self._request_of_array("cancel")

    def _request_of_array(self, verb: str) -> None:
        """Ask it of all jobs of an array of which some live."""
        live = [array for array, ids in self.arrays.items() if {*self._live()} & {*ids} - self.abandoned]
        if not live:
            self._array()
            return
        array = self.chance.choice(live)
        for job_id in self.arrays[array]:
            self.diary.write(Note(verb, job_id))
        if verb == "cancel":
            self.abandoned.update(self.arrays[array])
        self._ask(lambda client: getattr(client.arrays, verb)(array), array)
        for job_id in self.arrays[array]:
            self.diary.write(Note(verb, job_id, answered=True))
        self._see_elements(array)

    def _drill(self) -> None:
        """Simulate one or two events on a job that trains now. They may be refused if the training is about to end."""
        self._submit(LASTING)
        running, deadline = self._training(), time.monotonic() + self.habits.patience_s
        while not running and self._wanted() and time.monotonic() < deadline:
            time.sleep(self.habits.pause_s)
            running = self._training()
        if not running:
            return
        job_id = self.chance.choice(running)
        for _ in range(self.chance.choice((1, 1, 2))):
            self._simulate(self.chance.choice(DRILLS), job_id)
            time.sleep(self.chance.uniform(0.0, AGAIN_S))

    def _simulate(self, event: str, job_id: str) -> None:
        verb = "halt" if event == "halt" else "drill"
        self.diary.write(Note(verb, job_id))
        try:
            seen = self._ask(lambda client: client.drill(job_id, event), job_id)
        except RequestRefused:
            self._look(lambda client, one: client.get(one), [job_id])
            return
        self.jobs[job_id] = seen.state
        if verb == "halt" and seen.state not in ENDED:
            self.diary.write(Note(verb, job_id, answered=True))

    def _wanted(self) -> list[str]:
        return [job_id for job_id in self._live() if job_id not in self.abandoned]

    def _training(self) -> list[str]:
        """Jobs that train, as the daemon says now."""
        self._list()
        return [job_id for job_id in self._wanted() if self.jobs[job_id] == JobState.PROCESSING]

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

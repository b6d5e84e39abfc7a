"""One world from its beginning to its end: lives that are killed by plan, looks after each, then all work done."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from random import Random

from ffdl_batch.config import load_settings
from ffdl_batch.host.fast_dataclass import dataclass
from tests.crash.fuzz.companions import Companion, fork_companion, kill_children
from tests.crash.fuzz.diary import Diary
from tests.crash.fuzz.examiner import Examiner
from tests.crash.fuzz.mutations import MUTATIONS
from tests.crash.fuzz.plans import Planner
from tests.crash.fuzz.stages import FakeStage, Place, SlurmStage, Stage
from tests.crash.fuzz.steps import Plan
from tests.crash.fuzz.users import Users
from tests.crash.fuzz.warm import Life, WarmParent, read_reports

POLL_S = 0.003
ANSWER_S, END_S = 120.0, 120.0
"""How long a daemon may take to answer, and to end; never how long it takes."""
FINISH_S = 600.0
"""How long the work that is left may take, when nobody is killed any more."""
MORE = 6
"""A world whose wanted steps were not all hit goes on for up to so many kills for each of them."""
FINISH_PAUSE_S = 0.1
MOMENT = "a random moment"
_HEALTH = b"GET /api/v1/health HTTP/1.1\r\nHost: ffdl\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is to be played. `wanted` are steps that have to be hit; `mutation` names a fault to be made ("" = none),
    and with one the world ends as soon as it shows where it must. `slurm`: on the real cluster, in `base`."""

    base: str
    kills: int
    seed: int
    wanted: Sequence[str] = ()
    database_url: str = ""
    mutation: str = ""
    slurm: bool = False


@dataclass(slots=True)
class Tally:
    """What came of it. `deaths` counts by step.

    `answer_s` and `progress_s` are from each kill to the next daemon's first answer, and to the first step in its life
    that brought a job further.
    """

    seed: int
    mutation: str = ""
    kills: int = 0
    jobs: int = 0
    arrays: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    deaths: dict[str, int] = field(default_factory=dict)
    answer_s: list[float] = field(default_factory=list)
    progress_s: list[float] = field(default_factory=list)


def play(parent: WarmParent, assignment: Assignment) -> Tally:
    """The whole course; raises RuntimeError where a process of it fails, with the end of its log."""
    base = Path(assignment.base)
    mutation = MUTATIONS[assignment.mutation] if assignment.mutation else None
    place = Place(base, assignment.seed, assignment.database_url)
    stage: Stage = SlurmStage(place) if assignment.slurm else FakeStage(place, mutation)
    with contextlib.ExitStack() as stack:
        stack.callback(stage.close)
        stack.enter_context(_surrounded_by(stage.environment))
        settings = load_settings(cwd=base)
        Diary(base / "diary")
        users = fork_companion(
            "users", base / "users.log",
            lambda ours: Users(stage.habits, Diary(base / "diary"), assignment.seed).serve(ours),
        )  # fmt: skip
        stack.callback(users.end)
        examiner = fork_companion("examiner", base / "examiner.log", lambda ours: Examiner(base, settings).serve(ours))
        stack.callback(examiner.end)
        return Course(parent, assignment, stage, users, examiner).run()


class Course:
    """The lives of one world."""

    def __init__(
        self, parent: WarmParent, assignment: Assignment, stage: Stage, users: Companion, examiner: Companion
    ) -> None:
        self._parent, self._assignment, self._stage = parent, assignment, stage
        self._users, self._examiner = users, examiner
        self._base = Path(assignment.base)
        self._mutation = MUTATIONS[assignment.mutation] if assignment.mutation else None
        self._planner = Planner(Random(assignment.seed), assignment.wanted)
        self._deaths: Counter[str] = Counter()
        self._killed_at: float | None = None
        self._start_s = 0.0
        self._tally = Tally(assignment.seed, assignment.mutation)

    def run(self) -> Tally:
        """All lives, and the end."""
        tally, wanted = self._tally, self._assignment
        while tally.kills < wanted.kills or (self._planner.wanted and tally.kills < MORE * len(wanted.wanted)):
            self._live(self._planner.next(self._pace_s()))
            if self._mutation is not None and tally.counts.get(self._mutation.shows_in):
                break
        else:
            self._finish()
        tally.deaths = dict(self._deaths)
        return tally

    def _live(self, plan: Plan) -> None:
        """One life, to its death by plan."""
        life = self._fork(plan)
        self._users.ask({"prefer": plan.prefer})
        self._see_die(life, plan)
        said = [*read_reports(life), *self._stage.arm(Plan(), 0)]
        ended_at = time.monotonic()
        status = os.waitstatus_to_exitcode(os.waitpid(life.pid, 0)[1])
        if status != -signal.SIGKILL and not (plan.ask_to_end and status == 0):
            raise RuntimeError(f"a daemon ended by itself with {status}: {self._last_words()}")
        deaths = [line.removeprefix("died ") for line in said if line.startswith("died ")]
        death = deaths[0] if deaths else MOMENT
        progress = [float(line.removeprefix("progress ")) for line in said if line.startswith("progress ")]
        if progress and self._killed_at is not None:
            self._tally.progress_s.append(progress[0] - self._killed_at)
        self._planner.note([line.removeprefix("seen ") for line in said if line.startswith("seen ")], death)
        if status == 0:
            self._killed_at = None
            return
        self._killed_at = ended_at
        self._deaths[death] += 1
        self._tally.kills += 1

    def _fork(self, plan: Plan) -> Life:
        life = self._parent.fork(self._base / "lives.log", plan, self._stage.make_scheduler, self._mutation)
        self._stage.arm(plan, life.pid)
        return life

    def _see_die(self, life: Life, plan: Plan) -> None:
        """Wait for the first answer, and have the world looked at then; strike when the plan's time is over."""
        descriptor = os.pidfd_open(life.pid)
        try:
            watched = select.poll()
            watched.register(descriptor, select.POLLIN)
            begun, answered, asked = time.monotonic(), False, False
            deadline = begun + (plan.limit_s if plan.from_beginning else ANSWER_S)
            while True:
                left = max(0.0, deadline - time.monotonic())
                if watched.poll(1000 * (left if answered else min(left, POLL_S))):
                    return
                if not answered and self._answers():
                    answered = True
                    self._answered(time.monotonic() - begun)
                    self._look(final=False)
                    if not plan.from_beginning:
                        deadline = time.monotonic() + plan.limit_s
                if time.monotonic() < deadline:
                    continue
                if not answered and not plan.from_beginning:
                    raise RuntimeError(f"a daemon did not answer in {ANSWER_S:g} s: {self._last_words()}")
                if plan.ask_to_end and not asked:
                    asked, deadline = True, time.monotonic() + self._pace_s()
                    os.kill(life.pid, signal.SIGTERM)
                else:
                    _strike(life, plan)
                    deadline = time.monotonic() + END_S
        finally:
            os.close(descriptor)

    def _finish(self) -> None:
        """A last life, in which everything ends; then it is asked to end, and the world is looked at as a whole."""
        life = self._fork(Plan())
        descriptor = os.pidfd_open(life.pid)
        try:
            begun = time.monotonic()
            while not self._answers():
                if time.monotonic() > begun + ANSWER_S:
                    raise RuntimeError(f"the last daemon did not answer in {ANSWER_S:g} s: {self._last_words()}")
                time.sleep(POLL_S)
            self._answered(time.monotonic() - begun)
            self._look(final=False)
            self._users.ask({"finish_s": FINISH_S}, timeout_s=2 * FINISH_S)
            self._await_uploads()
            os.kill(life.pid, signal.SIGTERM)
            watched = select.poll()
            watched.register(descriptor, select.POLLIN)
            if not watched.poll(1000 * END_S):
                raise RuntimeError(f"the last daemon did not end in {END_S:g} s: {self._last_words()}")
        finally:
            os.close(descriptor)
            with contextlib.suppress(ProcessLookupError):
                os.kill(life.pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(life.pid, 0)[1])
            read_reports(life)
        if status != 0:
            raise RuntimeError(f"the last daemon ended with {status}: {self._last_words()}")
        self._look(final=True)

    def _await_uploads(self) -> None:
        """Wait until no upload is pending; one that is after the stage's time for that is judged as lost."""
        deadline = time.monotonic() + self._stage.settle_s
        while self._examiner.ask({"count": "pending uploads"})["pending_uploads"] and time.monotonic() < deadline:
            time.sleep(FINISH_PAUSE_S)

    def _answered(self, took_s: float) -> None:
        """A daemon gave its first answer, `took_s` after its beginning."""
        self._start_s = 0.8 * self._start_s + 0.2 * took_s
        if self._killed_at is not None:
            self._tally.answer_s.append(time.monotonic() - self._killed_at)

    def _pace_s(self) -> float:
        """How long a life may last after its first answer: longer where starts take long, at this hour."""
        return self._stage.pace_s + self._start_s / 2

    def _look(self, *, final: bool) -> None:
        answer = self._examiner.ask({"final": final})
        self._tally.counts, self._tally.jobs, self._tally.asked = answer["counts"], answer["jobs"], answer["asked"]
        self._tally.arrays = answer["arrays"]
        self._tally.sentences += answer["new"]

    def _answers(self) -> bool:
        """Whether a daemon answers, with all of its answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            try:
                connection.connect(self._stage.environment["FFDL_SOCKET"])
                connection.sendall(_HEALTH)
                data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            except OSError:
                return False
        return data.startswith(b"HTTP/1.1 200 ") and data.endswith(b"}")

    def _last_words(self) -> str:
        """The ends of the daemons' logs."""
        texts = []
        for path in (self._base / "lives.log", Path(self._stage.environment["FFDL_STATE_DIR"], "daemon.log")):
            if path.exists():
                texts.append(f"{path.name}: {path.read_text(errors='replace')[-3000:]}")
        return "\n".join(texts)


def _strike(life: Life, plan: Plan) -> None:
    """The time of this life is over. It starts nothing more while what it has started is killed."""
    if plan.whole_host:
        os.kill(life.pid, signal.SIGSTOP)
        kill_children(life.pid)
    os.kill(life.pid, signal.SIGKILL)


@contextlib.contextmanager
def _surrounded_by(environment: Mapping[str, str]) -> Iterator[None]:
    """This process, and all that it forks, in another environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

"""The daemon's way to the cluster process: an adapter like any other, over a Unix socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Absent, BackendFacts, BackendTraits
from ffdl_batch.domain.job.array import read_marks
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.launch.launch_file import Stores, encode
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import (
    ArraysRefused,
    NotNow,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan, LaunchRequest
from tests.crash.fuzz.cluster import LIFE_S
from tests.crash.fuzz.companions import Message, read_line, send_line
from tests.crash.fuzz.heads import Fate
from tests.fakes.arrays import ArrayScheduler
from tests.fakes.scheduler import QuietBackend

TIMEOUT_S = 10.0
MAX_ARRAY_SIZE = 4
"""Smaller than the largest arrays of users, so that some are cut."""
LAUNCH_FILE = "launch.json"
FATE = "FATE"
"""The job's variable that says what becomes of it."""
STORED = "stored"


class RemoteScheduler(QuietBackend):
    """Knows nothing but where the cluster is."""

    name = "fake"
    traits = BackendTraits(credential_life_s=LIFE_S)

    def __init__(self, place: Path) -> None:
        self._place = place
        self._planner = ArrayScheduler(max_array_size=MAX_ARRAY_SIZE)

    def probe(self) -> BackendFacts:
        """See :class:`ffdl_batch.ports.scheduler.Scheduler` and the protocols beside it, as for all below."""
        return self._planner.probe()

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Results go to a store outside of the tree of jobs; the script of an array says what becomes of its jobs."""
        plan = self._planner.plan(request)
        launch = replace(plan.launch, stores=Stores(str(stored(self._place.parent) / request.job_id)))
        files = tuple(
            replace(file, text=encode(launch)) if file.name == LAUNCH_FILE else file for file in plan.files
        )  # fmt: skip
        plan = replace(plan, launch=launch, files=files)
        return replace(plan, array_script=f"{plan.array_script}{_fate_of(plan)}\n") if plan.array_script else plan

    def submit(self, plan: LaunchPlan) -> NativeId:
        task = (plan.token, plan.attempt_dir.path, "")
        answer = self._ask(do="submit", name=plan.token, tasks=[task], fate=_fate_of(plan), limit=None)
        return NativeId(_accepted(answer)["id"])

    def plan_array(self, chunk: Chunk, members: Sequence[LaunchPlan]) -> ArrayPlan | None:
        return self._planner.plan_array(chunk, members)

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        """By the files alone, as a scheduler does."""
        table = Path(plan.chunk.directory.tasks).read_text(encoding="utf-8")
        places = dict(line.split(" ", 1) for line in table.splitlines())
        tasks = [(token, places[task], task) for token, task in plan.tasks.items()]
        fate = Path(plan.chunk.directory.script).read_text(encoding="utf-8").splitlines()[-1]
        answer = self._ask(do="submit", name=plan.chunk.token, tasks=tasks, fate=fate, limit=plan.chunk.limit)
        native = _accepted(answer)["id"]
        return {token: NativeId(native, task) for token, task in plan.tasks.items()}

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        return self.find_many({token: attempt_dir})[token]

    def find_many(self, attempts: Mapping[Token, AttemptDir]) -> Mapping[Token, frozenset[NativeId]]:
        marks = {token: Path(attempt.submit_begun) for token, attempt in attempts.items()}
        wanted = {token: read_marks(path.read_text() if path.exists() else "") for token, path in marks.items()}
        answer = self._ask(do="find", wanted=wanted)
        if "not now" in answer:
            raise NotNow(answer["not now"])
        return {token: frozenset(map(NativeId.parse, answer["ids"][token])) for token in attempts}

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        seen = self._ask(do="observe", ids=_texts(ids))["seen"]
        return {NativeId.parse(native): _observation(shown) for native, shown in seen.items()}

    def find_absent(self, ids: Collection[NativeId]) -> Absent:
        return Absent(frozenset(map(NativeId.parse, self._ask(do="find_absent", ids=_texts(ids))["ids"])))

    def signal(self, native_id: NativeId, signal: str) -> None:
        self.signal_many([native_id], signal)

    def cancel(self, native_id: NativeId) -> None:
        self.cancel_many([native_id])

    def withdraw(self, native_id: NativeId) -> None:
        self.withdraw_many([native_id])

    def cancel_many(self, ids: Collection[NativeId]) -> None:
        self._ask(do="cancel", ids=_texts(ids))

    def withdraw_many(self, ids: Collection[NativeId]) -> None:
        self._ask(do="withdraw", ids=_texts(ids))

    def signal_many(self, ids: Collection[NativeId], signal: str) -> None:
        self._ask(do="signal", ids=_texts(ids), signal=signal)

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        return self._planner.nodes_of(facts, partition)

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        self._ask(do="avoid", ids=[str(native_id)])

    def exclude_only(self, native_id: NativeId, nodes: str) -> None:
        self._ask(do="avoid", ids=[str(native_id)])

    def _ask(self, **request: object) -> Message:
        """One request on a connection of its own, as every command of a real scheduler has."""
        sent = False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(TIMEOUT_S)
                connection.connect(os.fspath(self._place))
                sent = True
                send_line(connection, dict(request))
                answer = read_line(connection)
        except OSError as error:
            raise self._failure(request, sent, str(error)) from error
        if answer is None:
            raise self._failure(request, sent, "it closed the connection")
        if "unreachable" in answer:
            raise SchedulerUnreachable(answer["unreachable"])
        return answer

    def _failure(self, request: Mapping[str, object], sent: bool, why: str) -> SchedulerError:
        sentence = f"the cluster at {self._place} did not answer {request['do']}: {why}"
        return SubmissionUncertain(sentence) if sent and request["do"] == "submit" else SchedulerUnreachable(sentence)


def stored(base: Path) -> Path:
    """Where the results of jobs are stored, each in a directory of its own, of the world in `base`."""
    return base / STORED


def _fate_of(plan: LaunchPlan) -> str:
    """What becomes of an attempt."""
    fate = Fate(plan.environment.get(FATE, Fate.WORKS))
    return (fate if plan.launch.attempt == 1 else fate.of_next()).value


def _accepted(answer: Message) -> Message:
    """The answer to a submission that was accepted; raises what it says of another."""
    for word, error in (("uncertain", SubmissionUncertain), ("too many", TooMany), ("refused", ArraysRefused)):
        if word in answer:
            raise error(answer[word])
    return answer


def _texts(ids: Collection[NativeId]) -> list[str]:
    return [str(native) for native in ids]


def _observation(shown: Message) -> Observation:
    end = EndCause(shown["end"]) if shown["end"] else None
    return Observation(**{**shown, "phase": Phase(shown["phase"]), "end": end})

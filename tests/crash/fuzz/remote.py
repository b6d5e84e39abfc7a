"""The daemon's way to the cluster process: an adapter like any other, over a Unix socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

from ffdl_batch.domain.job import Token
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.ports.scheduler import (
    BackendFacts,
    LaunchPlan,
    LaunchRequest,
    SchedulerError,
    SchedulerUnreachable,
    SubmissionUncertain,
)
from tests.crash.fuzz.cluster import LIFE_S
from tests.crash.fuzz.companions import Message, read_line, send_line
from tests.crash.fuzz.heads import Fate
from tests.fakes.scheduler import FakeScheduler

TIMEOUT_S = 10.0
FATE = "FATE"
"""The job's variable that says what becomes of it."""


class RemoteScheduler:
    """Knows nothing but where the cluster is."""

    name = "fake"
    credential_life_s = LIFE_S

    def __init__(self, place: Path) -> None:
        self._place = place
        self._planner = FakeScheduler()

    def probe(self) -> BackendFacts:
        """See :class:`ffdl_batch.ports.scheduler.Scheduler`, as for all below."""
        return self._planner.probe()

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        return self._planner.plan(request)

    def submit(self, plan: LaunchPlan) -> NativeId:
        fate = Fate(plan.environment.get(FATE, Fate.WORKS))
        if plan.launch.attempt > 1 and fate is not Fate.FAILS:
            fate = Fate.WORKS
        answer = self._ask(do="submit", token=plan.token, attempt=plan.attempt_dir.path, fate=fate.value)
        if "uncertain" in answer:
            raise SubmissionUncertain(answer["uncertain"])
        return NativeId(answer["id"])

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        return frozenset(map(NativeId, self._ask(do="find", token=token)["ids"]))

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        seen = self._ask(do="observe", ids=[str(native) for native in ids])["seen"]
        return {NativeId(native): _observation(shown) for native, shown in seen.items()}

    def is_forgotten(self, ids: Collection[NativeId]) -> frozenset[NativeId]:
        return frozenset(map(NativeId, self._ask(do="is_forgotten", ids=[str(native) for native in ids])["ids"]))

    def signal(self, native_id: NativeId, signal: str) -> None:
        self._ask(do="signal", id=str(native_id))

    def cancel(self, native_id: NativeId) -> None:
        self._ask(do="cancel", id=str(native_id))

    def withdraw(self, native_id: NativeId) -> None:
        self._ask(do="withdraw", id=str(native_id))

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        self._ask(do="avoid", id=str(native_id))

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


def _observation(shown: Message) -> Observation:
    end = EndCause(shown["end"]) if shown["end"] else None
    return Observation(**{**shown, "phase": Phase(shown["phase"]), "end": end})

"""The scheduler in memory, with native arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Absent, BackendFacts
from ffdl_batch.domain.job.array import read_marks
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.scheduler_errors import (
    ArraysRefused,
    InvalidRequest,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan, LaunchRequest, PlannedFile
from tests.fakes.scheduler import FakeScheduler


@dataclass
class ArrayScheduler(FakeScheduler):
    """`arrays` are accepted native arrays in order. `room` is how many jobs it takes at once (None = any number);
    `refuse_arrays`: it takes none at all. `find_calls` and `stop_calls` count questions and requests."""

    max_array_size: int = 1001
    room: int | None = None
    refuse_arrays: bool = False
    arrays: list[ArrayPlan] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    find_calls: int = 0
    stop_calls: list[tuple[str, int]] = field(default_factory=list)

    def probe(self) -> BackendFacts:
        return replace(super().probe(), max_array_size=self.max_array_size)

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        plan = super().plan(request)
        element = request.spec.element
        if element is None or request.array_dir is None:
            return plan
        script = f"#!/bin/sh\n# {request.spec.resources.gpus:g} GPUs, {request.spec.batch.partition}\n"
        return replace(plan, array_script=script, array_index=element.index)

    def plan_array(self, chunk: Chunk, members: Sequence[LaunchPlan]) -> ArrayPlan | None:
        numbers = [member.array_index for member in members]
        if numbers[-1] >= chunk.max_array_size:
            numbers = list(range(len(members)))
        tasks = {member.token: str(number) for member, number in zip(members, numbers, strict=True)}
        table = "".join(f"{tasks[member.token]} {member.attempt_dir.path}\n" for member in members)
        files = (PlannedFile("tasks", table), PlannedFile("script.sh", members[0].array_script, 0o700))
        return ArrayPlan(chunk, files, tasks, members[0].array_script, ("sbatch", chunk.directory.script))

    def submit_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        self._answer()
        self.tried.append(len(plan.tasks))
        if self.refuse:
            raise InvalidRequest(self.refuse)
        if odd := next((text for job, text in self.odd.items() if any(job in token for token in plan.tasks)), ""):
            self.turned_away.append(plan.chunk.token)
            raise NotUnderstood(odd, "the words")
        if self.site_refuses:
            raise RefusedBySite(self.site_refuses)
        if self.refuse_arrays:
            raise ArraysRefused("Invalid job array specification")
        self._check_room(len(plan.tasks))
        if self.fails:
            raise NotTaken(self.fails)
        if self.swallow:
            raise SubmissionUncertain("timed out; nothing was accepted, but nobody knows")
        found = self.accept_array(plan)
        if self.lose_reply:
            raise SubmissionUncertain("timed out after the request was accepted")
        return found

    def submit(self, plan: LaunchPlan) -> NativeId:
        self._answer()
        self._check_room(1)
        return super().submit(plan)

    def accept_array(self, plan: ArrayPlan) -> Mapping[Token, NativeId]:
        """What the scheduler does when a request lands."""
        job = str(self.next_id)
        self.next_id += 1
        self.arrays.append(plan)
        found = {token: NativeId(job, task) for token, task in plan.tasks.items()}
        for token, native in found.items():
            self.submitted.append((native, token))
            self.seen[native] = Observation(Phase.PENDING, "PENDING", reason="Resources")
        return found

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        return self.find_many({token: attempt_dir})[token]

    def find_many(self, attempts: Mapping[Token, AttemptDir]) -> Mapping[Token, frozenset[NativeId]]:
        """By the attempts' marks, not by what this fake remembers of their tokens: so the real ones do it."""
        self._answer()
        self.find_calls += 1
        return {token: self._find(token, attempt) for token, attempt in attempts.items()}

    def find_absent(self, ids: Collection[NativeId]) -> Absent:
        """Find dropped tasks by what it lists of their arrays."""
        absent = super().find_absent(ids)
        tasks = [native for native in absent.gone if native.task is not None and native not in self.seen]
        tokens, listed = dict(self.submitted), {native.job for native in self.seen if native.task is not None}
        return replace(absent, dropped={native: tokens[native] for native in tasks if native.job in listed})

    def cancel_many(self, ids: Collection[NativeId]) -> None:
        self.stop_calls.append(("cancel", len(ids)))
        for native in ids:
            self.cancel(native)

    def withdraw_many(self, ids: Collection[NativeId]) -> None:
        self.stop_calls.append(("withdraw", len(ids)))
        for native in ids:
            self.withdraw(native)

    def signal_many(self, ids: Collection[NativeId], signal: str) -> None:
        self.stop_calls.append((signal, len(ids)))
        for native in ids:
            self.signal(native, signal)

    def _find(self, token: Token, attempt: AttemptDir) -> frozenset[NativeId]:
        marks = read_marks(Path(attempt.submit_begun).read_text()) if Path(attempt.submit_begun).exists() else []
        alone = {native for native, known in self.submitted if known == token and native.task is None}
        as_tasks = {
            native
            for plan in self.arrays
            for native, known in self.submitted
            if known == token and (plan.chunk.token, native.task) in marks and plan.tasks.get(token) == native.task
        }
        return frozenset(alone | as_tasks)

    def _check_room(self, count: int) -> None:
        if self.room is not None and count > self.room:
            raise TooMany("Job violates accounting/QOS policy (job submit limit)")
        if self.room is not None:
            self.room -= count

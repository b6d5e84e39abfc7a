"""Arrays for the contract suite: elements planned, written and marked as the deployer does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.job.array import chunk_name, expand, mark_of, new_array_id
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.ports.capabilities import SubmitsArrays
from ffdl_batch.runtimes.launch_request import ArrayPlan, Chunk, LaunchPlan
from tests.contract.scheduler_harness import FakeSlurmHarness, Harness


class Fleet:
    """The elements of one array in a world whose backend takes native arrays."""

    def __init__(self, world: Harness, command: str, **changes: Any) -> None:
        """`changes` as in :meth:`Harness.request`; `batch` holds `array` or `sweep`."""
        self.world = world
        self.id = new_array_id()
        whole = world.request(command, **changes)
        self.plans: list[LaunchPlan] = []
        for spec in expand(whole.spec, self.id):
            request = world.request(command)
            request = replace(request, spec=spec, user_env=spec.batch.env, array_dir=world.root.array(self.id))
            self.plans.append(world.write(world.scheduler.plan(request)))

    @property
    def scheduler(self) -> SubmitsArrays:
        """The backend, as one that takes arrays."""
        assert isinstance(self.world.scheduler, SubmitsArrays)
        return self.world.scheduler

    @property
    def places(self) -> Mapping[Token, AttemptDir]:
        """Where each attempt lies, by token."""
        return {plan.token: plan.attempt_dir for plan in self.plans}

    def chunk(self, number: int = 1, limit: int | None = None) -> Chunk:
        """The array's first native array, or another one."""
        directory = self.world.root.array(self.id).chunk(number)
        return Chunk(chunk_name(self.id, number), directory, self.world.facts.max_array_size, limit)

    def prepare(self, number: int = 1, limit: int | None = None) -> ArrayPlan:
        """Plan and write the native array, and mark its attempts."""
        plan = self.scheduler.plan_array(self.chunk(number, limit), self.plans)
        assert plan is not None
        Path(plan.chunk.directory.submit).mkdir(parents=True)
        for file in plan.files:
            path = Path(plan.chunk.directory.path) / file.name
            path.write_text(file.text, encoding="utf-8")
            path.chmod(file.mode)
        for member in self.plans:
            mark = Path(member.attempt_dir.submit_begun)
            mark.parent.mkdir(exist_ok=True)
            earlier = mark.read_text() if mark.exists() else "begun test\n"
            mark.write_text(earlier + mark_of(plan.chunk.token, plan.tasks[member.token]))
        return plan

    def submit(self, limit: int | None = None) -> list[NativeId]:
        """Hand it over; the elements' ids, by index."""
        found = self.scheduler.submit_array(self.prepare(limit=limit))
        return [found[plan.token] for plan in self.plans]

    def finds(self) -> list[frozenset[NativeId]]:
        """What is found of each element, by index."""
        found = self.scheduler.find_many(self.places)
        return [found[plan.token] for plan in self.plans]


def raw_id(world: FakeSlurmHarness, native: NativeId) -> str:
    """The number that SLURM_JOB_ID has in a task of the fake."""
    assert native.task is not None
    found = json.loads((world.state / "jobs" / f"{native.job}.tasks").read_text())[native.task]
    return str(found)

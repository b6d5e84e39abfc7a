"""The named steps are the product's own, plans strike where they say, wrapped schedulers stay what they are."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from random import Random

import pytest

from ffdl_batch.attempt import file_writer
from ffdl_batch.attempt.file_writer import put, write_text
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.ports.capabilities import AvoidsNodes, ForgetsJobs, TrialSubmission
from ffdl_batch.services.deployment import array_submission, delivery, deployer
from ffdl_batch.services.monitoring import watcher
from tests.crash.fuzz.diary import Diary
from tests.crash.fuzz.habits import Habits
from tests.crash.fuzz.plans import PATIENCE, Planner, stimulus
from tests.crash.fuzz.steps import AT_THE_BEGINNING, AT_THE_END, COMPANY, DEPLOYER, NAMED, WATCHER, Plan, Steps
from tests.crash.fuzz.user import User
from tests.crash.fuzz.watching import watch_files, watch_scheduler
from tests.fakes.scheduler import FakeScheduler

PACE_S = 0.6


def named_in(module: object) -> set[str]:
    """The names that a module's loops call `reached` with."""
    return set(re.findall(r'\b_?reached\("([^"]+)"\)', inspect.getsource(module)))  # type: ignore[arg-type]


def test_fuzz_steps_cover_every_step_named_in_daemon_loops() -> None:
    assert named_in(deployer) | named_in(delivery) == set(DEPLOYER)
    assert named_in(array_submission) == set(COMPANY)
    assert named_in(watcher) == set(WATCHER)
    assert len(set(NAMED)) == len(NAMED)
    assert set(NAMED) >= AT_THE_END


def test_fuzz_steps_strike_at_planned_passing_after_reporting_it() -> None:
    said: list[str] = []
    steps = Steps(Plan(frozenset({"b"}), passing=2), said.append, lambda name: said.append(f"struck at {name}"))
    for name in ("a", "b", "a", "b"):
        steps.reached(name)
    assert said == ["seen a", "seen b", "died b", "struck at b"]


def test_fuzz_planner_targets_required_steps_before_all_seen_steps() -> None:
    planner = Planner(Random(1), {"x", "y"})
    assert planner.next(PACE_S).targets == {"x", "y"}
    planner.note(["x", "y", "z"], "x")
    last = planner.next(PACE_S)
    assert last.targets == {"y"}
    assert last.limit_s > PACE_S
    planner.note(["z"], "y")
    plans = [planner.next(PACE_S) for _ in range(200)]
    assert {step for plan in plans for step in plan.targets} == {"x", "y", "z"}
    assert any(not plan.targets for plan in plans)
    assert max(plan.limit_s for plan in plans) <= PATIENCE * PACE_S


def test_fuzz_planner_asks_daemon_to_end_when_target_is_a_shutdown_step() -> None:
    planner = Planner(Random(1), AT_THE_END)
    plan = planner.next(PACE_S)
    assert plan.ask_to_end and plan.targets < AT_THE_END


def test_fuzz_planner_targets_all_startup_steps_in_first_plan() -> None:
    for seed in range(50):
        first = Planner(Random(seed), {*AT_THE_BEGINNING, *AT_THE_END}).next(PACE_S)
        assert first.targets >= AT_THE_BEGINNING


def test_fuzz_stimulus_of_every_step_is_a_user_action() -> None:
    for step in NAMED:
        verb = stimulus(step).partition(" ")[0]
        assert not verb or hasattr(User, f"_{verb}"), step


def test_watch_scheduler_keeps_protocols_and_reports_steps() -> None:
    seen: list[str] = []
    watched = watch_scheduler(FakeScheduler(), seen.append)
    assert watched.name == "fake"
    assert watched.observe([NativeId("1")]) == {}
    assert seen == ["before call observe", "after call observe"]
    assert watched.traits == FakeScheduler().traits
    for protocol in (ForgetsJobs, AvoidsNodes):
        assert isinstance(watched, protocol)
    assert not isinstance(watched, TrialSubmission)


def test_watch_files_reports_step_before_named_file_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writer, "put", put)  # so that it is put back
    seen: list[tuple[str, bool]] = []
    watch_files(lambda step: seen.append((step, (tmp_path / "tasks").exists())))
    write_text(tmp_path / "tasks", "0 /attempt-1")
    write_text(tmp_path / "other", "of no name here")
    assert seen == [("half of tasks", False)]
    assert (tmp_path / "tasks").read_text() == "0 /attempt-1"


def test_fuzz_user_ignores_preferred_action_that_habits_exclude() -> None:
    done: list[str] = []

    class Idle(User):
        def _renew(self) -> None:
            return

        def _list(self) -> None:
            done.append("list")

        def _array(self, fate: str = "") -> None:
            done.append("array")

    habits = Habits(1, 1, 0.0, {}, {}, {}, "", verbs={"list": 1})
    user = Idle(0, habits, Diary(Path(os.devnull)), Random(1))
    for _ in range(20):
        user.act("array")
    assert done == ["list"] * 20

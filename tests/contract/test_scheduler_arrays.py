"""Native arrays: what every backend must do that takes them. Runs over all adapters found by entry point.

With FFDL_CONTRACT_BACKENDS=slurm-cli,slurm-pyslurm the same file runs on a real cluster instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.launch.launch_file import decode
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_batch.plugins import adapter_names
from ffdl_batch.ports.capabilities import ForgetsJobs, StopsMany
from tests import preloaded
from tests.contract.array_rig import Fleet
from tests.contract.scheduler_harness import Harness, open_harness, real_backends

WITH_ARRAYS = [name for name in real_backends() or adapter_names() if name.startswith("slurm")]
OBEDIENT = "trap 'exit 1' TERM; echo up; sleep 600 & wait"


@pytest.fixture(scope="module", params=WITH_ARRAYS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with open_harness(request.param, tmp_path_factory.mktemp("world")) as harness:
        yield harness


@pytest.fixture
def world(shared: Harness) -> Iterator[Harness]:
    """One backend that takes arrays, ready to take jobs."""
    yield shared
    shared.settle()


def test_native_array_tasks_execute_their_own_attempts(world: Harness) -> None:
    sweep = tuple({"lr": text} for text in ("0.1", "it's $(id)", ""))
    fleet = Fleet(world, 'echo "$FFDL_ARRAY_INDEX of $SLURM_ARRAY_TASK_COUNT <$lr>"; exit $FFDL_ARRAY_INDEX',
                  batch=BatchOptions(sweep=sweep))  # fmt: skip
    natives = fleet.submit()
    assert len({native.job for native in natives}) == 1
    assert [native.task for native in natives] == ["0", "1", "2"]
    ends = [world.await_end(native) for native in natives]
    assert [end.exit_code for end in ends] == [0, 1, 2]
    for number, plan in enumerate(fleet.plans):
        assert f"{number} of 3 <{sweep[number]['lr']}>" in world.log(plan)
        assert world.executions(plan.attempt_dir) == 1
        claim = json.loads(Path(plan.attempt_dir.claim_owner).read_text())
        assert claim["native_id"] == str(natives[number])
        assert (Path(plan.attempt_dir.path) / "batch.log").exists()


def test_native_array_tasks_are_observed_under_attempt_tokens(world: Harness) -> None:
    fleet = Fleet(world, "true", batch=BatchOptions(array="0-2", hold=True))
    natives = fleet.submit()
    seen = world.scheduler.observe([*natives, NativeId(natives[0].job, "9")])
    assert {native: observation.name for native, observation in seen.items()} == {
        native: plan.token for native, plan in zip(natives, fleet.plans, strict=True)
    }
    assert {observation.phase for observation in seen.values()} == {Phase.PENDING}
    for native in natives:
        world.scheduler.cancel(native)
    for native in natives:
        assert world.await_end(native).end is EndCause.CANCELLED
    assert [name.name for name in world.scheduler.observe(natives).values()] == [plan.token for plan in fleet.plans]


def test_scheduler_find_recovers_array_elements_without_reply_file(world: Harness) -> None:
    fleet = Fleet(world, "true", batch=BatchOptions(array="4,5", hold=True))
    plan = fleet.prepare()
    assert fleet.finds() == [frozenset(), frozenset()]
    natives = fleet.scheduler.submit_array(plan)
    (Path(plan.chunk.directory.submit) / "reply").unlink()
    assert fleet.finds() == [{natives[member.token]} for member in fleet.plans]
    one = fleet.plans[1]
    assert world.scheduler.find(one.token, one.attempt_dir) == {natives[one.token]}
    for native in natives.values():
        world.scheduler.cancel(native)
    world.await_end(natives[one.token])
    assert world.scheduler.find(one.token, one.attempt_dir) == {natives[one.token]}


def test_array_element_executes_once_when_submitted_several_times(world: Harness) -> None:
    fleet = Fleet(world, "echo ran; sleep 0.3", batch=BatchOptions(array="0-1"))
    first = fleet.scheduler.submit_array(fleet.prepare(1))
    second = fleet.scheduler.submit_array(fleet.prepare(2))
    alone = world.scheduler.submit(fleet.plans[0])
    for native in [*first.values(), *second.values(), alone]:
        world.await_end(native)
    token = fleet.plans[0].token
    assert fleet.finds() == [
        {first[token], second[token], alone},
        {first[fleet.plans[1].token], second[fleet.plans[1].token]},
    ]
    for plan in fleet.plans:
        assert world.executions(plan.attempt_dir) == 1
        assert world.log(plan).count("ran") == 1


def test_native_array_element_is_signalled_and_cancelled_alone(world: Harness) -> None:
    command = "trap 'echo checkpointed; exit 0' USR2; trap 'exit 1' TERM; echo up; while :; do sleep 0.1; done"
    fleet = Fleet(world, command, batch=BatchOptions(array="0-2"))
    natives = fleet.submit()
    for plan in fleet.plans:
        world.await_log(plan, "up")
    world.scheduler.signal(natives[0], "URG")
    world.await_log(fleet.plans[0], "checkpointed")
    world.scheduler.cancel(natives[1])
    assert world.await_end(natives[1]).end is EndCause.CANCELLED
    world.await_end(natives[0])
    last = world.observe(natives[2])
    assert last is not None and last.phase is Phase.RUNNING
    world.scheduler.cancel(natives[2])
    world.await_end(natives[2])


def test_scheduler_stops_many_array_tasks_and_ignores_unknown_ids(world: Harness) -> None:
    assert isinstance(world.scheduler, StopsMany)
    assert isinstance(world.scheduler, ForgetsJobs)
    held = Fleet(world, "true", batch=BatchOptions(array="0-3", hold=True))
    waiting = held.submit()
    running = Fleet(world, OBEDIENT, batch=BatchOptions(array="0-1"))
    natives = running.submit()
    for plan in running.plans:
        world.await_log(plan, "up")
    world.scheduler.withdraw_many([*waiting[:2], natives[0], NativeId("999999999")])
    absent = world.scheduler.find_absent([*waiting, *natives, NativeId("999999999", "1"), NativeId("999999999")])
    assert absent.dropped == {native: plan.token for native, plan in zip(waiting[:2], held.plans, strict=False)}
    assert {(world.observe(native) or fail()).phase for native in waiting[2:]} == {Phase.PENDING}
    assert (world.observe(natives[0]) or fail()).phase is Phase.RUNNING
    world.scheduler.signal_many([natives[0], waiting[0], NativeId("999999999")], "URG")
    world.scheduler.cancel_many([*waiting, *natives, NativeId("999999999")])
    assert {world.await_end(native).end for native in [*waiting, *natives]} == {EndCause.CANCELLED}


def test_native_array_keeps_its_limit_and_names_output_files_by_element_index(world: Harness) -> None:
    fleet = Fleet(world, "date +%s.%N; sleep 0.5; date +%s.%N", batch=BatchOptions(array="4-7%2", output="out-%a.txt"))
    for native in fleet.submit(limit=2):
        assert world.await_end(native).end is EndCause.SUCCESS
    logs = [world.log(plan) for plan in fleet.plans]
    times = [tuple(float(line) for line in log.split()[-2:]) for log in logs]
    most = max(sum(begin <= moment < end for begin, end in times) for moment, _ in times)
    assert most <= 2
    for index, log in zip(range(4, 8), logs, strict=True):
        assert log.split()[-1] in (world.base / f"out-{index}.txt").read_text()


def test_native_array_accepts_element_index_beyond_site_limit(world: Harness) -> None:
    index = world.facts.max_array_size
    fleet = Fleet(world, "echo element $FFDL_ARRAY_INDEX", batch=BatchOptions(array=f"0,{index}"))
    natives = fleet.submit()
    assert [native.task for native in natives] == ["0", "1"]
    for native, plan, number in zip(natives, fleet.plans, (0, index), strict=True):
        assert world.await_end(native).end is EndCause.SUCCESS
        assert f"element {number}" in world.log(plan)
    named = Fleet(world, "true", batch=BatchOptions(array=f"0,{index}", output="out-%a.txt"))
    assert named.scheduler.plan_array(named.chunk(), named.plans) is None
    lone = replace(named.plans[1], array_index=0)
    assert "out-0.txt" not in lone.script and f"out-{index}.txt" in lone.script


def test_next_attempt_of_array_element_depends_on_its_own_task(world: Harness) -> None:
    """The argv by which its head submits it, as a head fills it in."""
    fleet = Fleet(world, OBEDIENT, batch=BatchOptions(array="0-1"))
    natives = fleet.submit()
    world.await_log(fleet.plans[1], "up")
    launch = decode(Path(fleet.plans[1].attempt_dir.launch).read_text())
    assert launch.succession is not None
    claim = json.loads(Path(fleet.plans[1].attempt_dir.claim_owner).read_text())
    next_one = world.prepare("true")
    values = {"native_id": claim["native_id"], "script": next_one.attempt_dir.script, "lead_s": "60", "token": "x"}
    argv = [fill(part, values) for part in launch.succession.submit]
    assert f"--dependency=afterany:{natives[1]}" in argv
    done = preloaded.run(argv, capture_output=True, text=True, check=True, timeout=120)
    follower = NativeId(done.stdout.split()[-1].partition(";")[0])
    assert (world.observe(follower) or fail()).phase is Phase.PENDING
    world.scheduler.cancel(natives[1])
    world.await_end(natives[1])
    assert world.await_end(follower).end is EndCause.SUCCESS
    world.scheduler.cancel(natives[0])


def fail() -> NoReturn:
    raise AssertionError("the job is not listed")

"""The child that starts a step is not waited for when all that it started has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.head import step
from ffdl_batch.controller.head.step import Step, count_events
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, encode_event
from tests.unit.controller.rig import launch_file

BEGUN = (EventKind.STARTED,)
OVER = (EventKind.STARTED, EventKind.ENDED)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchFile:
    """An attempt on two nodes, whose srun sleeps. Each call of runs() looks at the events."""
    monkeypatch.setattr(step, "LOOK_S", 0.0)
    monkeypatch.setattr(step, "LINGERS_S", 0.0)
    attempt = AttemptDir(str(tmp_path / "1"))
    Path(attempt.events).mkdir(parents=True)
    return launch_file(attempt.path, nodes=2, step=("sleep", "600"), limits=Limits(heartbeat_s=0.0))


def say(launch: LaunchFile, rank: int, kinds: Sequence[EventKind]) -> None:
    """What a node's controller has written by now."""
    lines = [encode_event(Event(n, 1.0, f"node-{rank}", kind)) for n, kind in enumerate(kinds, 1)]
    Path(AttemptDir(launch.attempt_dir).event_file(f"node-{rank}")).write_text("".join(lines))


@pytest.fixture
def running(launch: LaunchFile) -> Iterator[Step]:
    """The step of a second run: both nodes have events of the first."""
    for rank in (0, 1):
        say(launch, rank, OVER)
    child = Step(launch, "/launch.json", 2, count_events(launch))
    yield child
    child.process.kill()
    child.process.wait()


def continues(child: Step) -> bool:
    """Whether it still runs after three looks."""
    return all(child.runs() for _ in range(3)) and child.process.poll() is None


@pytest.mark.parametrize(("first", "second"), [((), ()), (OVER, ()), (OVER, BEGUN)])
def test_step_continues_until_all_nodes_have_new_end_event(
    running: Step, launch: LaunchFile, first: tuple[EventKind, ...], second: tuple[EventKind, ...]
) -> None:
    say(launch, 0, OVER + first)
    say(launch, 1, OVER + second)
    assert continues(running)


def test_step_kills_launcher_that_outlives_all_nodes_for_too_long(
    running: Step, launch: LaunchFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        say(launch, rank, OVER + OVER)
    with monkeypatch.context() as patch:
        patch.setattr(step, "LINGERS_S", 3600.0)
        assert continues(running)
    assert not running.runs()
    assert running.process.poll() is not None
    assert "outlived the step's tasks" in capsys.readouterr().err


@pytest.mark.parametrize("beating", [(0,), (1,), (0, 1)])
def test_step_continues_while_node_with_end_event_has_heartbeat(
    running: Step, launch: LaunchFile, beating: Sequence[int]
) -> None:
    """A learner can write an end event into the file of its node controller."""
    attempt = AttemptDir(launch.attempt_dir)
    for rank in (0, 1):
        say(launch, rank, OVER + OVER)
        Path(attempt.heartbeat(rank)).touch()
    for second in range(3):
        for rank in beating:
            os.utime(attempt.heartbeat(rank), (second, second))
        assert running.runs()
    assert not (running.runs() and running.runs()), "the heartbeats have stopped"


@pytest.mark.parametrize("nodes", [1, 2])
def test_step_waits_for_own_node_controller_whatever_its_events_say(
    launch: LaunchFile, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """Without a launcher, the child is the node controller."""
    monkeypatch.setattr(step, "_argv", lambda *_: ["sleep", "600"])
    launch = replace(launch, step=(), nodes=nodes)
    child = Step(launch, "/launch.json", 1, count_events(launch))
    try:
        for rank in range(nodes):
            say(launch, rank, OVER)
        assert continues(child)
    finally:
        child.process.kill()
        child.process.wait()


def test_step_continues_if_event_file_cannot_be_read(running: Step, launch: LaunchFile) -> None:
    for rank in (0, 1):
        say(launch, rank, OVER + OVER)
    path = Path(AttemptDir(launch.attempt_dir).event_file("node-1"))
    path.unlink()
    path.mkdir()
    assert continues(running)

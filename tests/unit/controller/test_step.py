"""The child that starts a step is not waited for when all that it started has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ffdl_batch.controller.head import step
from ffdl_batch.controller.head.step import Step, count_events
from ffdl_batch.domain.events import Event, EventKind, encode_event
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand

BEGUN = (EventKind.STARTED,)
OVER = (EventKind.STARTED, EventKind.ENDED)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchFile:
    """An attempt on two nodes, whose srun sleeps."""
    monkeypatch.setattr(step, "LOOK_S", 0.01)
    monkeypatch.setattr(step, "LINGERS_S", 0.1)
    attempt = AttemptDir(str(tmp_path / "1"))
    os.makedirs(attempt.events)  # noqa: PTH103 - AttemptDir gives texts
    learner = LearnerCommand(("x",), {})
    return LaunchFile(
        "training-0", 1, "training-0-1", str(tmp_path), attempt.path, "/d", learner, nodes=2, step=("sleep", "60")
    )


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


def lasts(child: Step, for_s: float = 0.3) -> bool:
    """Whether it still runs after `for_s`, which is three times as long as it may linger."""
    end = time.monotonic() + for_s
    while child.runs() and time.monotonic() < end:
        time.sleep(0.01)
    return child.process.poll() is None


def test_step_ignores_events_of_earlier_run(running: Step) -> None:
    assert lasts(running)


@pytest.mark.parametrize("other", [(), BEGUN])
def test_step_continues_while_one_node_has_not_ended(
    running: Step, launch: LaunchFile, other: tuple[EventKind, ...]
) -> None:
    say(launch, 0, OVER + OVER)
    say(launch, 1, OVER + other)
    assert lasts(running)


def test_step_kills_launcher_that_outlives_all_nodes(
    running: Step, launch: LaunchFile, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        say(launch, rank, OVER + OVER)
    assert not lasts(running, 60.0)
    assert "outlived the step's tasks" in capsys.readouterr().err


def test_step_continues_if_event_file_cannot_be_read(running: Step, launch: LaunchFile) -> None:
    for rank in (0, 1):
        say(launch, rank, OVER + OVER)
    path = Path(AttemptDir(launch.attempt_dir).event_file("node-1"))
    path.unlink()
    path.mkdir()
    assert lasts(running)

"""What a pod's controller says of how data move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.controller.pod import relay
from ffdl_batch.controller.pod.relay import Relay
from ffdl_batch.controller.stores.progress import show_moving
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand, Pod
from ffdl_batch.domain.pod import Frame, FrameKind, decode_frame


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(str(tmp_path / "attempt-1"))
    Path(found.moving).parent.mkdir(parents=True)
    return found


def relay_of(attempt: AttemptDir, index: int, said: list[str]) -> Relay:
    base = str(Path(attempt.path).parent)
    launch = LaunchFile(
        "training-a", 1, "training-a-1", base, attempt.path, f"{base}/bell", LearnerCommand((), {}),
        learners=2, nodes=2, pod=Pod(base, apart=True),
    )  # fmt: skip
    return Relay(launch, index, 1, said.append)


def frames(said: list[str]) -> list[Frame]:
    return [frame for line in said if (frame := decode_frame(line)) is not None]


def test_relay_sends_progress_at_intervals_and_its_end_at_once(
    attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(relay, "MOVING_S", 3600.0)
    mine = relay_of(attempt, 0, said)
    assert not mine.look()
    show_moving(attempt.moving, "storing", "1 of 2 files")
    assert mine.look()
    show_moving(attempt.moving, "storing", "2 of 2 files")
    assert not mine.look(), "not again so soon"
    monkeypatch.setattr(relay, "MOVING_S", 0.0)
    assert mine.look() and not mine.look()
    Path(attempt.moving).unlink()
    assert mine.look() and not mine.look()
    told = frames(said)
    assert {(one.kind, one.file) for one in told} == {(FrameKind.CELL, "staging/now.json")}
    assert [json.loads(one.data).get("said") for one in told] == ["1 of 2 files", "2 of 2 files", None]


def test_relay_of_other_pods_sends_no_progress(attempt: AttemptDir) -> None:
    said: list[str] = []
    show_moving(attempt.moving, "storing", "1 of 2 files")
    assert not relay_of(attempt, 1, said).look() and not said

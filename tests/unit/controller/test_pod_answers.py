"""What a pod shows of its learners where nobody may run a command in it, and of how data move."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.attach import helper
from ffdl_batch.controller.data.transfer_progress import show_moving
from ffdl_batch.controller.learner.agents import Agent
from ffdl_batch.controller.pod import daemon_requests, relay
from ffdl_batch.controller.pod.daemon_requests import LONGEST_CHARACTERS, Answers
from ffdl_batch.controller.pod.relay import Relay
from ffdl_batch.domain.launch.attach_protocol import STACK, TOP
from ffdl_batch.domain.launch.launch_file import LaunchFile, Pod
from ffdl_batch.domain.launch.pod_protocol import (
    Answer,
    Frame,
    FrameKind,
    Look,
    decode_answer,
    decode_frame,
    encode_answer,
)
from tests.unit.controller.rig import launch_file, refusal


def launch(base: Path) -> LaunchFile:
    (base / "attempt-1").mkdir(exist_ok=True)
    pod = Pod(str(base), apart=True)
    return launch_file(str(base / "attempt-1"), job_dir=str(base), learners=2, nodes=2, pod=pod)


def frames(lines: list[str]) -> list[Frame]:
    return [frame for line in lines if (frame := decode_frame(line)) is not None]


def shown(base: Path, look: Look) -> Answer:
    said: list[tuple[str, bytes]] = []
    there = threading.Event()

    def say(name: str, data: bytes) -> None:
        said.append((name, data))
        there.set()

    assert Answers(launch(base), 0, say).begin(look)
    assert there.wait(60)
    ((name, data),) = said
    assert name == look.id
    return decode_answer(data)


@pytest.mark.parametrize("learners", [(1,), (2,)])
def test_pod_answer_reports_learner_that_cannot_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learners: tuple[int, ...]
) -> None:
    monkeypatch.setattr(helper, "PATIENCE_S", 0.0)
    answer = shown(tmp_path, Look("a", STACK, learners))
    assert f"learner {learners[0]} of attempt 1 of training-7 cannot be entered on" in answer.refused


def test_pod_answer_truncates_long_stack_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_requests, "await_agents", lambda *_: {1: Agent(1, 10, 10)})
    monkeypatch.setattr(daemon_requests, "dump", lambda _: ("x" * (LONGEST_CHARACTERS + 1), False))
    answer = shown(tmp_path, Look("a", STACK, (1,)))
    assert (answer.status, answer.refused) == (1, "")
    assert answer.text == "x" * LONGEST_CHARACTERS + "\n(cut here)\n"


def test_pod_answer_reports_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_requests, "await_agents", refusal(errno.EIO))
    said = "nothing can be seen: OSError: [Errno 5] Input/output error"
    assert shown(tmp_path, Look("a", TOP, (1,))).refused == said


def test_pod_answer_rejects_unknown_view_of_later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_requests, "await_agents", lambda *_: {1: Agent(1, 10, 10)})
    assert "cannot show 'heap'" in shown(tmp_path, Look("a", "heap", (1,))).refused


def test_pod_answers_handle_one_request_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is begun later: the request stays until it is."""
    go, over = threading.Event(), threading.Event()
    monkeypatch.setattr(daemon_requests, "await_agents", lambda *_: go.wait(60) and {})
    mine = Answers(launch(tmp_path), 0, lambda *_: over.set())
    assert mine.begin(Look("a", TOP, (1,)))
    assert not mine.begin(Look("b", TOP, (1,)))
    go.set()
    assert over.wait(60)


def test_relay_splits_long_answer_into_ordered_frames(tmp_path: Path) -> None:
    lines: list[str] = []
    data = encode_answer(Answer(text="stück\n" * 20_000))
    Relay(launch(tmp_path), 0, 1, lines.append).answer("a", data)
    sent = frames(lines)
    assert len(sent) > 1
    assert {(one.kind, one.file, one.size) for one in sent} == {(FrameKind.ANSWER, "a", len(data))}
    assert b"".join(one.data for one in sent) == data
    assert [one.offset for one in sent] == [sum(len(one.data) for one in sent[:n]) for n in range(len(sent))]


@pytest.fixture
def moving(tmp_path: Path) -> Path:
    """The file that tells of the transfer that is under way."""
    path = Path(AttemptDir(launch(tmp_path).attempt_dir).moving)
    path.parent.mkdir(parents=True)
    return path


def test_relay_sends_progress_at_intervals_and_its_end_at_once(
    tmp_path: Path, moving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(relay, "MOVING_S", 3600.0)
    mine = Relay(launch(tmp_path), 0, 1, lines.append)
    assert not mine.look()
    show_moving(str(moving), "storing", "1 of 2 files")
    assert mine.look()
    show_moving(str(moving), "storing", "2 of 2 files")
    assert not mine.look(), "not again so soon"
    monkeypatch.setattr(relay, "MOVING_S", 0.0)
    assert mine.look() and not mine.look()
    moving.unlink()
    assert mine.look() and not mine.look()
    assert {(one.kind, one.file) for one in frames(lines)} == {(FrameKind.CELL, "staging/now.json")}
    assert [json.loads(one.data).get("said") for one in frames(lines)] == ["1 of 2 files", "2 of 2 files", None]


def test_relay_of_other_pods_sends_no_progress(tmp_path: Path, moving: Path) -> None:
    lines: list[str] = []
    show_moving(str(moving), "storing", "1 of 2 files")
    assert not Relay(launch(tmp_path), 1, 1, lines.append).look() and not lines

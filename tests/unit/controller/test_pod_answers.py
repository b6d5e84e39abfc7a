"""What a pod shows of its learners where nobody may run a command in it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ffdl_batch.controller.attach import serve
from ffdl_batch.controller.learner.agents import Agent
from ffdl_batch.controller.pod import answers
from ffdl_batch.controller.pod.answers import LONGEST_CHARACTERS, Answers
from ffdl_batch.controller.pod.relay import Relay
from ffdl_batch.domain.attach import STACK, TOP
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand, Pod
from ffdl_batch.domain.pod import Answer, FrameKind, Look, decode_answer, decode_frame, encode_answer


def launch(base: Path) -> LaunchFile:
    attempt = base / "attempt-1"
    attempt.mkdir(exist_ok=True)
    return LaunchFile(
        "training-a", 1, "training-a-1", str(base), str(attempt), str(base / "bell"), LearnerCommand((), {}),
        learners=2, nodes=2, pod=Pod(str(base), apart=True),
    )  # fmt: skip


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
    monkeypatch.setattr(serve, "PATIENCE_S", 0.0)
    answer = shown(tmp_path, Look("a", STACK, learners))
    assert f"learner {learners[0]} of attempt 1 of training-a cannot be entered on" in answer.refused


def test_pod_answer_truncates_long_stack_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "await_agents", lambda *_: {1: Agent(1, 10, 10)})
    monkeypatch.setattr(answers, "dump", lambda _: ("x" * (LONGEST_CHARACTERS + 1), False))
    answer = shown(tmp_path, Look("a", STACK, (1,)))
    assert (answer.status, answer.refused) == (1, "")
    assert answer.text == "x" * LONGEST_CHARACTERS + "\n(cut here)\n"


def test_pod_answer_reports_unexpected_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no /proc here")

    monkeypatch.setattr(answers, "await_agents", fails)
    assert shown(tmp_path, Look("a", TOP, (1,))).refused == "nothing can be seen: OSError: no /proc here"


def test_pod_answer_rejects_unknown_view_of_later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "await_agents", lambda *_: {1: Agent(1, 10, 10)})
    assert "cannot show 'heap'" in shown(tmp_path, Look("a", "heap", (1,))).refused


def test_pod_answers_handle_one_request_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is begun later: the wish stays until it is."""
    go, over = threading.Event(), threading.Event()
    monkeypatch.setattr(answers, "await_agents", lambda *_: go.wait(60) and {})
    mine = Answers(launch(tmp_path), 0, lambda *_: over.set())
    assert mine.begin(Look("a", TOP, (1,)))
    assert not mine.begin(Look("b", TOP, (1,)))
    go.set()
    assert over.wait(60)


def test_relay_splits_long_answer_into_ordered_frames(tmp_path: Path) -> None:
    lines: list[str] = []
    data = encode_answer(Answer(text="stück\n" * 20_000))
    Relay(launch(tmp_path), 0, 1, lines.append).answer("a", data)
    frames = [frame for line in lines if (frame := decode_frame(line)) is not None]
    assert len(frames) > 1 and {(one.kind, one.file, one.size) for one in frames} == {
        (FrameKind.ANSWER, "a", len(data))
    }
    assert b"".join(one.data for one in frames) == data
    assert [one.offset for one in frames] == [sum(len(one.data) for one in frames[:n]) for n in range(len(frames))]

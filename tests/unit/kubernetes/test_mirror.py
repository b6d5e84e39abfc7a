"""The daemon's copy of an attempt: lines that come once, twice, late, cut off and from liars."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.launch.pod_protocol import Frame, FrameKind, pieces
from ffdl_batch.services.logs.log_reader import LogReader
from ffdl_kubernetes.objects.names import CONTROLLER
from ffdl_kubernetes.observing import attempt_mirror as mirrors
from ffdl_kubernetes.observing.attempt_mirror import Mirror
from ffdl_kubernetes.observing.log_follower import termination_message
from tests.planted_files import NO_FILES, replace

JOB = "training-0a1b2c3d4"
SMALL = LogLimits(file_bytes=1000, files=3)


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], Mirror]:
    """A mirror of the attempt below tmp_path; each is that of a daemon that was started again."""
    root = Root(str(tmp_path))

    def made() -> Mirror:
        return Mirror(root.job(JOB).attempt(1), root.doorbell, JOB, 2, SMALL)

    return made


def attempt(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / JOB / "attempt-1"


def frames(kind: FrameKind, name: str, data: bytes, start: int = 0) -> list[Frame]:
    found: list[Frame] = []
    offset = start
    for part in pieces(data):
        found.append(Frame(1, len(found) + 1, kind, name, offset, part, len(data) if kind is FrameKind.CELL else 0))
        offset += len(part)
    return found


def test_mirror_appends_events_once_and_rings_doorbell(tmp_path: Path, make: Callable[[], Mirror]) -> None:
    mirror = make()
    mirror.apply(Frame(1, 1, FrameKind.APPEND, "events/head.jsonl", 0, b"one\n"), 5.0, 0)
    assert (tmp_path / "doorbell" / JOB).exists()
    (tmp_path / "doorbell" / JOB).unlink()
    mirror.apply(Frame(1, 1, FrameKind.APPEND, "events/head.jsonl", 0, b"one\n"), 5.0, 0)
    assert not (tmp_path / "doorbell" / JOB).exists()
    make().apply(Frame(1, 2, FrameKind.APPEND, "events/head.jsonl", 2, b"e\ntwo\n"), 6.0, 0)
    assert (attempt(tmp_path) / "events/head.jsonl").read_bytes() == b"one\ntwo\n"
    assert (attempt(tmp_path) / "events/node-0.heartbeat").stat().st_mtime == 6.0


def test_mirror_reports_missing_bytes_until_gap_is_filled(tmp_path: Path, make: Callable[[], Mirror]) -> None:
    mirror = make()
    mirror.apply(Frame(1, 1, FrameKind.APPEND, "events/head.jsonl", 0, b"one\n"), 1.0, 0)
    mirror.apply(Frame(1, 3, FrameKind.APPEND, "events/head.jsonl", 8, b"three\n"), 1.0, 0)
    assert mirror.missing == {"events/head.jsonl": 4}
    mirror.apply(Frame(1, 4, FrameKind.APPEND, "events/head.jsonl", 4, b"two\nthree\n"), 1.0, 0)
    assert mirror.missing == {}
    assert (attempt(tmp_path) / "events/head.jsonl").read_bytes() == b"one\ntwo\nthree\n"


def test_mirror_finds_missing_data_from_size_snapshot(make: Callable[[], Mirror]) -> None:
    mirror = make()
    sizes = {"events/head.jsonl": 10, "logs/learner-1": 0, "logs/learner-2": 7, "model/secret": 9}
    mirror.apply(Frame(1, 1, FrameKind.SIZES, sizes=sizes), 1.0, 0)
    assert mirror.missing == {"events/head.jsonl": 0, "logs/learner-2": 0}


def test_mirror_writes_cell_only_when_complete(tmp_path: Path, make: Callable[[], Mirror]) -> None:
    mirror, text = make(), json.dumps({"outcome": "completed", "message": "x" * 50_000}).encode()
    parts = frames(FrameKind.CELL, "final.json", text)
    assert len(parts) > 2
    for part in (parts[0], *parts[2:]):
        mirror.apply(part, 1.0, 0)
    assert not (attempt(tmp_path) / "final.json").exists()
    for part in parts:
        mirror.apply(part, 1.0, 0)
    assert (attempt(tmp_path) / "final.json").read_bytes() == text
    assert (attempt(tmp_path) / "final.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "name",
    ["../../secrets.json", "/etc/passwd", "launch.json", "secrets.json", "events/../../x.jsonl", "control.json", ""],
)
@pytest.mark.parametrize("kind", [FrameKind.APPEND, FrameKind.CELL, FrameKind.LOG])
def test_mirror_writes_only_controller_files(
    tmp_path: Path, make: Callable[[], Mirror], kind: FrameKind, name: str
) -> None:
    make().apply(Frame(1, 1, kind, name, 0, b"x", 1), 1.0, 0)
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert written == [Path("jobs", JOB, "attempt-1/events/node-0.heartbeat")]


def test_mirror_rejects_cell_with_excessive_or_wrong_size(tmp_path: Path, make: Callable[[], Mirror]) -> None:
    mirror = make()
    mirror.apply(Frame(1, 1, FrameKind.CELL, "final.json", 0, b"x", 1 << 40), 1.0, 0)
    mirror.apply(Frame(1, 2, FrameKind.CELL, "final.json", 0, b"xyz", 2), 1.0, 0)
    assert not (attempt(tmp_path) / "final.json").exists()


def read(tmp_path: Path) -> list[tuple[int, str]]:
    reader = LogReader(Root(str(tmp_path)).job(JOB).attempt(1), 1, 1)
    return [(line.index, line.line) for line in reader.lines(ended=True)]


def test_mirror_preserves_log_lines_across_rotation_and_daemon_restart(
    tmp_path: Path, make: Callable[[], Mirror]
) -> None:
    printed = "".join(f"line {number} ä\n" for number in range(1, 401)).encode()
    at = random.Random(1)
    mirror, start = make(), 0
    while start < len(printed):
        if at.random() < 0.2:
            mirror = make()
        begin = max(0, start - at.randrange(30))  # read twice, by a daemon that remembers a second, not a byte
        end = min(len(printed), start + at.randrange(1, 60))
        mirror.apply(Frame(1, 1, FrameKind.LOG, "logs/learner-1", begin, printed[begin:end]), 100.0 + start, 0)
        start = end
    files = sorted(path.name for path in (attempt(tmp_path) / "logs/learner-1").iterdir())
    assert files == ["training-log.txt", "training-log.txt.1", "training-log.txt.2"]
    shown = read(tmp_path)
    assert shown[0][0] > 1 and shown[-1] == (400, "line 400 ä")
    assert [text for _, text in shown] == [f"line {number} ä" for number, _ in shown]


def test_mirror_skips_gap_in_log_after_timeout(
    tmp_path: Path, make: Callable[[], Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = make()
    mirror.apply(Frame(1, 1, FrameKind.LOG, "logs/learner-1", 0, b"one\n"), 1.0, 0)
    mirror.apply(Frame(1, 2, FrameKind.LOG, "logs/learner-1", 100, b"late\n"), 1.0, 0)
    assert mirror.missing == {"logs/learner-1": 4}
    monkeypatch.setattr(mirrors, "LONGEST_SEND_S", 0.0)
    mirror.apply(Frame(1, 3, FrameKind.LOG, "logs/learner-1", 100, b"late\n"), 1.0, 0)
    assert mirror.missing == {}
    assert [text for _, text in read(tmp_path)] == ["one", "late"]


def test_mirror_continues_log_when_daemon_was_killed_during_rotation(
    tmp_path: Path, make: Callable[[], Mirror]
) -> None:
    mirror = make()
    mirror.apply(Frame(1, 1, FrameKind.LOG, "logs/learner-1", 0, b"a" * 999 + b"\n"), 1.0, 0)
    directory = attempt(tmp_path) / "logs/learner-1"
    (directory / "training-log.txt").replace(directory / "training-log.txt.1")
    mirror = make()
    mirror.apply(Frame(1, 2, FrameKind.LOG, "logs/learner-1", 1000, b"next\n"), 1.0, 0)
    assert mirror.missing == {}
    assert [line for line, _ in read(tmp_path)] == [1, 2]


def test_mirror_writes_staging_progress_without_ringing_doorbell(tmp_path: Path, make: Callable[[], Mirror]) -> None:
    cell = b'{"what":"storing","said":"1 of 2 files","at":5.0}'
    for one in frames(FrameKind.CELL, "staging/now.json", cell):
        make().apply(one, 5.0, 0)
    assert (attempt(tmp_path) / "staging/now.json").read_bytes() == cell
    make().apply(Frame(1, 2, FrameKind.CELL, "staging/now.json", 0, b"{}\n", 3), 6.0, 0)
    assert (attempt(tmp_path) / "staging/now.json").read_bytes() == b"{}\n"
    assert not (tmp_path / "doorbell" / JOB).exists()


@pytest.mark.parametrize("kind", NO_FILES)
def test_mirror_replaces_planted_files(tmp_path: Path, make: Callable[[], Mirror], kind: str) -> None:
    files = {
        "events/head.jsonl": Frame(1, 1, FrameKind.APPEND, "events/head.jsonl", 0, b"one\n"),
        "stop.json": Frame(1, 2, FrameKind.CELL, "stop.json", 0, b"{}\n", 3),
        "events/node-0.heartbeat": Frame(1, 3, FrameKind.CELL, "events/node-0.heartbeat"),
        "logs/learner-1/training-log.txt": Frame(1, 4, FrameKind.LOG, "logs/learner-1", 0, b"printed\n"),
        "events/learner-1.files": Frame(1, 5, FrameKind.LOG, "logs/learner-1", 8, b"more\n"),
        "events/learner-1.marks": Frame(1, 6, FrameKind.LOG, "logs/learner-1", 13, b"still more\n"),
    }
    for name in files:
        replace(attempt(tmp_path) / name, NO_FILES[kind])
    mirror = make()
    for frame in files.values():
        mirror.apply(frame, 5.0, 0)
    for name in files:
        path = attempt(tmp_path) / name
        assert path.is_file() and not path.is_symlink(), name
    text = (attempt(tmp_path) / "logs/learner-1/training-log.txt").read_text()
    assert text == "printed\nmore\nstill more\n"


@pytest.mark.parametrize("text", ["[" * 4000, '{"at":' + "9" * 400 + "}", "", "null", "\ud800"])
def test_final_word_of_pod_is_none_if_its_message_is_not_a_record(text: str) -> None:
    ended = {"name": CONTROLLER, "state": {"terminated": {"message": text}}}
    assert termination_message({"status": {"initContainerStatuses": [ended]}}) is None

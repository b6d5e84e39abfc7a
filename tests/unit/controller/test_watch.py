"""When a node controller must give its learners up."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from ffdl_batch.controller.node import control_poller as watching
from ffdl_batch.controller.node.control_poller import ControlPoller
from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.launch.launch_file import Pod
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.host.running_clock import RunningTime
from tests.unit.controller.rig import launch_file, refusal


@pytest.fixture(name="watch")
def made(tmp_path: Path) -> ControlPoller:
    for name in ("events", "state"):
        (tmp_path / "attempt" / name).mkdir(parents=True)
    return ControlPoller(launch_file(str(tmp_path / "attempt"), attempt=2, limits=Limits(fence_s=5.0)), 0, [1])


@pytest.mark.parametrize(("attempt", "fenced"), [(1, False), (2, False), (3, True), ("x", False)])
def test_watch_fences_node_when_control_names_newer_attempt(
    watch: ControlPoller, attempt: object, fenced: bool
) -> None:
    Path(watch.attempt.control).write_text(json.dumps({"attempt": attempt}))
    watch.look()
    assert bool(watch.fenced) is fenced


@pytest.mark.parametrize(
    ("apart", "claimed", "fenced"),
    [(False, (3,), True), (False, (1, 2), False), (False, (5,), True), (False, (), False), (True, (3,), False)],
)
def test_watch_fences_pod_when_later_attempt_is_claimed_in_its_volume(
    tmp_path: Path, apart: bool, claimed: tuple[int, ...], fenced: bool
) -> None:
    """On a node that was cut off: neither the daemon nor kubelet can tell it."""
    job = tmp_path / "job"
    for name in ("events", "state"):
        (job / "attempt-2" / name).mkdir(parents=True)
    for number in (3, 4):
        (job / f"attempt-{number}").mkdir()
    for number in claimed:
        (job / f"attempt-{number}" / "claim").mkdir(parents=True, exist_ok=True)
    pod = Pod(str(tmp_path / "pod"), apart=apart)
    watch = ControlPoller(launch_file(str(job / "attempt-2"), attempt=2, job_dir=str(job), pod=pod), 0, [1])
    watch.look()
    assert bool(watch.superseded) is bool(watch.fenced) is fenced


@pytest.mark.parametrize(("version", "notes"), [(FORMAT, 0), (FORMAT + 1, 1)])
def test_watch_notes_control_of_newer_format_once(
    watch: ControlPoller, capsys: pytest.CaptureFixture[str], version: int, notes: int
) -> None:
    Path(watch.attempt.control).write_text(json.dumps({"attempt": 1, "format": version}))
    watch.look()
    watch.look()
    assert capsys.readouterr().err.count("it obeys what it understands") == notes


def test_watch_fences_node_when_attempt_directory_stays_unreadable(
    watch: ControlPoller, capsys: pytest.CaptureFixture[str]
) -> None:
    watch.clock = SteppedTime()
    watch.look()
    assert not watch.fenced
    Path(watch.attempt.path).rename(watch.attempt.path + ".gone")
    watch.clock.at += 1.0
    watch.look()
    assert not watch.fenced
    watch.clock.at += 5.0
    watch.look()
    assert "could not be read" in watch.fenced
    assert "will be tried again" in capsys.readouterr().err


class SteppedTime(RunningTime):
    """A clock that is set by hand."""

    at = 100.0

    def now(self) -> float:
        return self.at


def test_watch_takes_learner_as_begun_when_file_system_does_not_say(
    watch: ControlPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "FRESH_S", 60.0)
    watch.clock = clock = SteppedTime()
    watch.begin()
    try:
        assert not watch.has_begun(1)
        clock.at += 1.0
        Path(watch.attempt.path).rename(watch.attempt.path + ".gone")
        assert watch.has_begun(1)
        Path(watch.attempt.path + ".gone").rename(watch.attempt.path)
        assert not watch.has_begun(1)
    finally:
        watch.finish()


@pytest.mark.parametrize(
    ("error", "is_fenced"), [(errno.EIO, True), (errno.EROFS, True), (errno.ENOSPC, False), (errno.EDQUOT, False)]
)
def test_watch_fences_node_when_heartbeat_fails_except_on_full_disk(
    watch: ControlPoller, monkeypatch: pytest.MonkeyPatch, error: int, is_fenced: bool
) -> None:
    """A dead disk is read from the cache for hours: no cell read there proves that no newer attempt has begun."""
    watch.clock = SteppedTime()
    monkeypatch.setattr(watching, "touch", refusal(error))
    for later_s, expected in ((0.0, False), (4.9, False), (5.1, is_fenced)):
        watch.clock.at = 100.0 + later_s
        watch.look()
        assert bool(watch.fenced) is expected, later_s
    assert ("could not be written" in watch.fenced) is is_fenced
    monkeypatch.undo()
    watch.look()
    assert not watch.fenced


def test_watch_resets_fence_timer_when_error_changes_to_full_disk(
    watch: ControlPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [errno.EIO, *[errno.EDQUOT] * 3]

    def refuse(path: str) -> None:
        raise OSError(refusals.pop(0), "refused", path)

    watch.clock = SteppedTime()
    monkeypatch.setattr(watching, "touch", refuse)
    for later_s in (0.0, 1.0, 5.5, 60.0):
        watch.clock.at = 100.0 + later_s
        watch.look()
        assert not watch.fenced, later_s
    assert refusals == []


def test_watch_ignores_damaged_and_empty_cells(watch: ControlPoller) -> None:
    Path(watch.attempt.stop).write_text("")
    Path(watch.attempt.control).write_text("{")
    watch.look()
    assert (watch.stop, watch.fenced) == ({}, "")

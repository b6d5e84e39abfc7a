"""What counts as a checkpoint, how long learners have for it, and who may not go on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ffdl_batch.attempt.control_cell import Control, count_restarts, newer_run, own_run, read_control
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import unreported_ends
from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.controller.checkpoints import (
    CheckpointRecord,
    Inventory,
    Request,
    changed,
    join,
    new_request,
    take_inventory,
)
from ffdl_batch.controller.data.tree_copy import copy_tree
from ffdl_batch.domain.launch.launch_file import HostVariables, LaunchFile
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, Scalar
from ffdl_batch.host.processes import boot_id
from ffdl_batch.host.running_clock import RunningTime
from tests.unit.controller.rig import launch_file

K = EventKind


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_inventory_lists_only_non_empty_regular_files(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "deep" / "er" / "b")
    write(tmp_path / "empty", "")
    write(tmp_path / ".nfs0001")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = take_inventory(str(tmp_path))
    assert (sorted(found.files), found.whole) == (["a", "deep/er/b"], True)
    assert take_inventory(str(tmp_path / "none")) == Inventory({}, True)


def test_inventory_stops_at_file_limit_and_time_limit(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / name)
    assert len(take_inventory(str(tmp_path), max_files=2).files) == 2
    assert not take_inventory(str(tmp_path), max_files=2).whole
    assert not take_inventory(str(tmp_path), patience_s=-1.0).whole


S = 10**9


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        (Inventory({"a": (1, 5, S)}), {"a": (1, 5, S)}, []),
        (Inventory({"a": (1, 5, S)}), {"a": (2, 5, S)}, ["a"]),  # replaced
        (Inventory({"a": (1, 5, S)}), {"a": (1, 6, S)}, ["a"]),  # grown
        (Inventory({"a": (1, 5, S)}), {"a": (1, 5, 2 * S)}, ["a"]),  # written again
        (Inventory({}, whole=False), {"old": (1, 1, 50 * S), "new": (2, 1, 101 * S)}, ["new"]),  # by their times alone
    ],
)
def test_changed_files_lists_new_replaced_or_rewritten_files(
    before: Inventory, after: dict[str, tuple[int, int, int]], new: list[str]
) -> None:
    assert changed(before, Inventory(after), 100.0) == new


def test_checkpoint_record_confirms_file_written_between_request_and_exit(tmp_path: Path) -> None:
    write(tmp_path / "before")
    record = CheckpointRecord(str(tmp_path))
    record.begin()
    write(tmp_path / "early")
    record.asked(10.0)
    write(tmp_path / "answer")
    os.utime(tmp_path / "answer", (2_000_000_000, 2_000_000_000))
    record.asked(11.0)
    record.ended(12.5, by_itself=True)
    found = record.result()
    assert (found.asked, found.confirmed, found.answered, found.took_s) == (True, True, True, 2.5)
    assert (found.newest, found.saved_at) == ("answer", 2_000_000_000.0)


def test_checkpoint_record_reports_but_does_not_confirm_file_written_before_request(tmp_path: Path) -> None:
    write(tmp_path / "of-earlier-attempt")
    record = CheckpointRecord(str(tmp_path))
    record.begin()
    found = record.result()
    assert (found.asked, found.confirmed, found.saved_at, found.newest) == (False, False, None, "")
    saved = write(tmp_path / "early").stat().st_mtime
    record.asked(1.0)
    record.ended(2.0, by_itself=True)
    found = record.result()
    assert (found.confirmed, found.newest) == (False, "early")
    assert found.saved_at == pytest.approx(saved)


@pytest.mark.parametrize(("wrote", "by_itself"), [(False, True), (True, False)])
def test_checkpoint_record_confirms_nothing_without_new_file_or_own_exit(
    tmp_path: Path, wrote: bool, by_itself: bool
) -> None:
    record = CheckpointRecord(str(tmp_path))
    record.begin()
    record.asked(1.0)
    if wrote:
        write(tmp_path / "x")
    record.ended(2.0, by_itself=True)
    record.ended(3.0, by_itself=by_itself)
    found = record.result()
    assert (found.confirmed, found.answered, found.saved_at is not None) == (False, by_itself, wrote)


def test_checkpoint_record_reports_only_exit_without_directory() -> None:
    record = CheckpointRecord("")
    record.begin()
    record.asked(1.0)
    record.ended(2.0, by_itself=True)
    found = record.result()
    assert (found.confirmed, found.answered, found.took_s, found.saved_at) == (False, True, 1.0, None)


@pytest.mark.parametrize(
    ("reason", "limits", "term_at", "kill_at"),
    [
        ("halt", Limits(60, 30, lead_s=500), 160, 190),
        ("warned", Limits(60, 30), 160, 190),
        ("warned", Limits(60, 30, lead_s=300, store_s=10), 390, 400),
        ("time", Limits(60, 30, lead_s=300, store_s=100), 300, 330),
        ("warned", Limits(60, 30, lead_s=20, store_s=10), 130, 131),
        ("term", Limits(60, 30), 115, 120),
    ],
)
def test_checkpoint_request_sets_term_and_kill_times_per_reason(
    reason: str, limits: Limits, term_at: float, kill_at: float
) -> None:
    assert new_request(reason, limits, 100.0) == Request(reason, 100.0, term_at, kill_at)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("warned", "halt", "halt"),
        ("halt", "warned", "halt"),
        ("halt", "term", "halt"),
        ("warned", "term", "warned"),
        ("term", "halt", "halt"),
        ("time", "warned", "time"),
    ],
)
def test_joined_checkpoint_requests_keep_earliest_times(first: str, second: str, reason: str) -> None:
    one, two = Request(first, 1.0, 50.0, 60.0), Request(second, 2.0, 40.0, 70.0)
    assert join(one, two) == Request(reason, 1.0, 40.0, 60.0)
    assert join(None, two) == two


def test_running_time_excludes_time_while_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 63.0, 64.0])
    monkeypatch.setattr("ffdl_batch.host.running_clock.time.monotonic", lambda: next(times))
    clock = RunningTime()
    assert [clock.now() for _ in range(4)] == [1.0, 3.0, 3.0, 4.0]


def launch(tmp_path: Path, *step: str) -> LaunchFile:
    return launch_file(str(tmp_path / "a"), step=step, host=HostVariables(restart_count="R"))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ({"attempt": 2, "requested_action": "halt", "drill": ""}, Control(2, "halt")),
        ({"attempt": "2", "requested_action": "sing"}, Control()),
        ({}, Control()),
    ],
)
def test_read_control_returns_request_or_default_for_invalid_file(
    tmp_path: Path, cell: object, expected: Control
) -> None:
    (tmp_path / "control.json").write_text(json.dumps(cell))
    assert read_control(AttemptDir(str(tmp_path))) == expected


@pytest.mark.parametrize(
    ("run", "here", "step", "found"),
    [(1, False, (), 3), (1, True, (), 0), (1, True, ("srun",), 3), (3, False, (), 0), (2, False, ("srun",), 3)],
)
def test_newer_run_returns_highest_later_claim_from_other_host_or_step(
    tmp_path: Path, run: int, here: bool, step: tuple[str, ...], found: int
) -> None:
    owner = {"host": os.uname().nodename if here else "elsewhere", "boot_id": boot_id()}
    one = launch(tmp_path, *step)
    for number in (2, 3):
        write(Path(AttemptDir(one.attempt_dir).run_claim(number)) / "owner.json", json.dumps(owner))
    assert newer_run(one, run) == found


def test_run_and_restart_numbers_are_read_from_environment(tmp_path: Path) -> None:
    one = launch(tmp_path)
    assert [own_run(env) for env in ({}, {"FFDL_RUN": "3"}, {"FFDL_RUN": "x"}, {"FFDL_RUN": "0"})] == [1, 3, 1, 1]
    assert [count_restarts(one, env, own_run(env)) for env in ({}, {"FFDL_RUN": "3"}, {"FFDL_RUN": "3", "R": "5"})] == [
        0,
        2,
        5,
    ]


def ev(kind: EventKind, **fields: Scalar) -> Event:
    return Event(1, 1.0, "node-0", kind, fields)


STARTED, ENDED = ev(K.LEARNER_STARTED, learner_id=1), ev(K.LEARNER_ENDED, learner_id=1)


@pytest.mark.parametrize(
    ("events", "text", "found"),
    [
        ([STARTED], "3\n", {1: 3}),
        ([], "0\n", {1: 0}),
        ([STARTED, ENDED], "0\n", {}),
        ([STARTED, ENDED, STARTED], "0\n", {1: 0}),
        ([STARTED, ev(K.ASKED, reason="term")], "0\n", {}),
        ([STARTED], "143\n", {}),
        ([STARTED], "1", {}),
        ([STARTED], "", {}),
    ],
    ids=["status", "never noted", "told", "again", "asked", "killed", "torn", "empty"],
)
def test_orphans_return_unreported_exit_status_unless_asked_or_killed(
    tmp_path: Path, events: list[Event], text: str, found: dict[int, int]
) -> None:
    phases = PhaseFiles(str(tmp_path))
    Path(phases.ended_path(1)).write_text(text)
    assert unreported_ends(events, phases, [1, 2]) == found


def test_copy_tree_keeps_newer_target_files(tmp_path: Path) -> None:
    for name, at in (("older", 10), ("newer", 1000)):
        os.utime(write(tmp_path / "target" / name, "target"), (at, at))
        os.utime(write(tmp_path / "source" / name, "source"), (100, 100))
    write(tmp_path / "source" / "missing", "source")
    copy_tree(str(tmp_path / "source"), str(tmp_path / "target"), keep_newer=True)
    found = {path.name: path.read_text() for path in (tmp_path / "target").iterdir()}
    assert found == {"older": "source", "newer": "target", "missing": "source"}


def test_copy_tree_leaves_only_whole_files_when_interrupted(tmp_path: Path) -> None:
    calls = iter([None] * 3)
    for name in "abc":
        write(tmp_path / "source" / name, "whole")
    with pytest.raises(StopIteration):
        copy_tree(str(tmp_path / "source"), str(tmp_path / "target"), go_on=lambda: next(calls))
    assert [path.read_text() for path in (tmp_path / "target").iterdir()] == ["whole"]

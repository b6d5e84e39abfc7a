"""What a learner may plant in the directories that it can write in, for the controllers and the daemon to follow."""

from __future__ import annotations

import os
import shutil
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from ffdl_batch.attempt import file_writer as files
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.attempt.reader import size_of
from ffdl_batch.controller.data.job_directories import make_places
from ffdl_batch.controller.data.model_unpacking import copy_archive, unpack
from ffdl_batch.controller.data.result_storage import store_logs, store_results
from ffdl_batch.controller.data.tree_copy import copy_tree
from ffdl_batch.controller.learner.learner import Learner, Start
from ffdl_batch.controller.logs.output_pipe import LogPlace
from ffdl_batch.controller.node.control_poller import Echo
from ffdl_batch.controller.rendezvous.launch_agent import MAIL, NAME, install
from ffdl_batch.domain.launch.launch_file import LaunchFile, Stores
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.outcome.controller_events import EventKind, Phase
from ffdl_batch.host.running_clock import RunningTime
from ffdl_batch.services.logs.log_reader import LogReader, has_log
from ffdl_batch.services.outcome.attempt_records import saved_checkpoint
from tests.unit.controller.rig import LIMIT_S, launch_file, plant_link, plant_pipe, plant_socket, until

Plant = Callable[[Path, Path], None]
KEPT = "what the user has outside\n"


def plant_dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside.with_name("not there yet"))


planted = pytest.mark.parametrize("plant", [plant_link, plant_dangling_link, plant_pipe, plant_socket])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / ".bashrc"
    path.parent.mkdir()
    path.write_text(KEPT)
    os.utime(path, (1000, 1000))
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


def is_as_it_was(outside: Path) -> bool:
    here = sorted(path.name for path in outside.parent.iterdir())
    return (here, outside.read_text(), outside.stat().st_mtime) == ([outside.name], KEPT, 1000)


class Blind:
    """Nothing is known of any learner."""

    def inner_pid(self, learner_id: int) -> str:
        return ""

    def has_begun(self, learner_id: int) -> bool:
        return True

    def forget(self, learner_id: int) -> None:
        return


@planted
def test_learner_log_replaces_planted_file_when_learner_restarts(
    place: Path, outside: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffdl_batch.controller.logs.output_pipe.WAIT_S", LIMIT_S)  # who writes it may start slowly
    attempt = AttemptDir(str(place))
    log = Path(attempt.training_log(1))
    log.parent.mkdir(parents=True)
    Path(attempt.events).mkdir()
    plant(log, outside)
    argv = ["/bin/sh", "-c", "echo said"]
    written = LogPlace(str(place), 1, LogLimits(), "mark")
    start = Start(1, argv, {}, str(place), written, str(place / ".began-1"), str(place / ".ended-1"))
    learner = Learner.spawn(start, RunningTime(), Blind())
    assert learner.process.wait(timeout=LIMIT_S) == 0
    until(learner.output.has_ended)
    assert is_as_it_was(outside)
    assert (log.is_symlink(), log.read_text(), stat.S_IMODE(log.stat().st_mode) & 0o600) == (False, "said\n", 0o600)


def test_open_own_appends_to_log_and_writes_blocking(place: Path) -> None:
    (place / "log").write_text("before\n")
    descriptor = files.open_own(str(place / "log"), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, b"after\n")
        assert os.get_blocking(descriptor)
    finally:
        os.close(descriptor)
    assert (place / "log").read_text() == "before\nafter\n"


def test_open_own_replaces_pipe_that_has_a_reader(place: Path) -> None:
    os.mkfifo(place / "log")
    reader = os.open(place / "log", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.close(files.open_own(str(place / "log"), os.O_WRONLY))
    finally:
        os.close(reader)
    assert (place / "log").is_file()


@planted
def test_touch_and_create_replace_planted_files(place: Path, outside: Path, plant: Plant) -> None:
    for name, make in (("touched", files.touch), ("made", files.create_empty)):
        plant(place / name, outside)
        make(str(place / name))
        assert (place / name).is_file() and not (place / name).is_symlink()
    assert is_as_it_was(outside)


@planted
def test_phase_files_replace_planted_files(place: Path, outside: Path, plant: Plant) -> None:
    phases = PhaseFiles(str(place))
    for name in ("halt", "training-abc", "learner.start", "learner.start_time", "learner.exit"):
        plant(place / name, outside)
    phases.announce("training-abc", 1)
    phases.request_halt()
    phases.begin(Phase.LEARNER)
    phases.end(Phase.LEARNER, 3)
    assert is_as_it_was(outside)
    assert phases.status(Phase.LEARNER) == 3
    assert all((place / name).is_file() and not (place / name).is_symlink() for name in ("halt", "training-abc"))


def test_write_text_uses_unpredictable_temporary_name(place: Path, outside: Path) -> None:
    (place / ".cell").symlink_to(outside)
    files.write_text(str(place / "cell"), "text")
    assert (place / "cell").read_text() == "text"
    assert is_as_it_was(outside)


def test_write_text_does_not_follow_link_at_temporary_name(
    place: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\0" * count)
    left = place / f".cell.{'00' * 4}"
    left.symlink_to(outside)
    with pytest.raises(FileExistsError):
        files.write_text(str(place / "cell"), "text")
    assert is_as_it_was(outside)
    assert left.is_symlink()


@planted
def test_phase_files_ignore_planted_status_files(place: Path, outside: Path, plant: Plant) -> None:
    outside.write_text("7\n")
    for name in (".began-1", ".ended-1", "learner.exit"):
        plant(place / name, outside)
    phases = PhaseFiles(str(place))
    assert (phases.began(1), phases.ended_status(1), phases.status(Phase.LEARNER)) == ("", None, None)
    assert phases.ended_at(1) not in (None, 1000)


def test_phase_files_read_regular_status_files(place: Path) -> None:
    phases = PhaseFiles(str(place))
    (place / ".began-1").write_text("17\n")
    (place / ".ended-1").write_text("3\n")
    assert (phases.began(1), phases.ended_status(1), phases.began(2), phases.ended_at(2)) == ("17", 3, None, None)


@planted
def test_log_tail_is_empty_for_planted_file(place: Path, outside: Path, plant: Plant) -> None:
    plant(place / "log", outside)
    assert tail(str(place / "log")) == ()
    assert size_of(str(place / "log")) == 0


@planted
def test_log_echo_skips_planted_file(place: Path, outside: Path, plant: Plant) -> None:
    log = place / "log"
    log.write_text("mine\n")
    read_end, write_end = os.pipe()
    try:
        echo = Echo([str(log)], write_end)
        echo._logs = {str(log): 0}
        echo.copy()
        log.unlink()
        plant(log, outside)
        echo.copy()
    finally:
        os.close(write_end)
    with os.fdopen(read_end) as said:
        assert said.read() == "mine\n"


# ---------------------------------------------------------------------------------------------- directories


@pytest.mark.parametrize("name", [MAIL, f"{MAIL}/learner-0"])
def test_launch_agent_install_replaces_linked_mailbox_and_keeps_target(place: Path, outside: Path, name: str) -> None:
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).symlink_to(outside.parent)
    install(str(place), ["learner-0"])
    assert is_as_it_was(outside)
    assert (place / MAIL / "learner-0").is_dir()
    assert not (place / name).is_symlink()
    assert os.access(place / NAME, os.X_OK)


def test_launch_agent_install_empties_mailbox_without_following_links(place: Path, outside: Path) -> None:
    box = place / MAIL / "learner-0"
    (box / "directory" / "deep").mkdir(parents=True)
    (box / "directory" / "link").symlink_to(outside.parent)
    (box / "link").symlink_to(outside.parent)
    (box / "1.run").write_text("echo left")
    install(str(place), ["learner-0"])
    assert list(box.iterdir()) == []
    assert is_as_it_was(outside)


def test_make_directory_rejects_and_keeps_existing_file(place: Path) -> None:
    (place / "file").write_text("kept")
    with pytest.raises(FileExistsError):
        files.make_directory(str(place / "file"))
    assert (place / "file").read_text() == "kept"


def launch_of(tmp_path: Path, **more: object) -> LaunchFile:
    job = tmp_path / "jobs" / "training-abc"
    return launch_file(str(job / "attempt-1"), job_dir=str(job), doorbell=str(tmp_path / "doorbell"), **more)


def test_store_logs_replaces_links_planted_in_results(tmp_path: Path, outside: Path) -> None:
    store = tmp_path / "store"
    stores = Stores(str(store), str(store), str(store / "_submitted_code" / "model.zip"))
    archive = tmp_path / "model.zip"
    archive.write_text("archive")
    launch = launch_of(tmp_path, stores=stores, model_archive=str(archive))
    attempt = AttemptDir(launch.attempt_dir)
    for directory in (attempt.results, attempt.learner_logs(1)):
        Path(directory).mkdir(parents=True)
    for name in ("learner-1", "_submitted_code"):
        Path(attempt.results, name).symlink_to(outside.parent)
    Path(attempt.learner_logs(1), "authorized_keys").write_text("a learner's")
    Path(attempt.learner_logs(1), ".log-copy-complete").symlink_to(outside)
    store_results(launch)
    store_logs(launch, [1])
    assert is_as_it_was(outside)
    assert (store / "learner-1" / "authorized_keys").read_text() == "a learner's"
    assert not (store / "learner-1" / ".log-copy-complete").is_symlink()
    assert (store / "_submitted_code" / "model.zip").read_text() == "archive"


def test_store_results_reports_what_is_not_kept_as_event_and_in_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = launch_of(tmp_path, stores=Stores(str(tmp_path / "store")))
    attempt = AttemptDir(launch.attempt_dir)
    for directory in (attempt.results, attempt.learner_logs(1), attempt.state, attempt.events):
        Path(directory).mkdir(parents=True, exist_ok=True)
    for name, target in {"latest": "epoch3", "data": "/datasets/x", "inner": attempt.results}.items():
        Path(attempt.results, name).symlink_to(target)
    journal = Journal(f"{attempt.events}/node-0.jsonl", "node-0")
    for _ in range(2):
        store_results(launch, node_rank=0, journal=journal)
    what = "data is a link that leads out of the directory, to /datasets/x"
    events = [event for event in journal.events if event.kind is EventKind.NOT_KEPT]
    assert {str(event.fields["message"]).split(";")[0] for event in events} == {what}
    for text in (Path(attempt.training_log(1)).read_text(), capfd.readouterr().err):
        assert f"storing: {what}" in text
    links = {path.name: str(path.readlink()) for path in (tmp_path / "store").iterdir()}
    assert links == {"latest": "epoch3", "data": "/datasets/x", "inner": "."}


def test_copy_tree_replaces_stored_link_with_directory(tmp_path: Path, outside: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    (source / "sub").symlink_to(outside.parent)
    copy_tree(str(source), str(target))
    (source / "sub").unlink()
    (source / "sub").mkdir()
    (source / "sub" / outside.name).write_text("a learner's")
    copy_tree(str(source), str(target))
    assert is_as_it_was(outside)
    assert (target / "sub" / outside.name).read_text() == "a learner's"


def test_copy_tree_does_not_follow_link_at_temporary_name(tmp_path: Path, outside: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    target.mkdir()
    (source / "file").write_text("a learner's")
    (target / f".{os.uname().nodename}-{os.getpid()}.ffdl-tmp").symlink_to(outside)
    copy_tree(str(source), str(target))
    assert is_as_it_was(outside)
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("file", "a learner's")]


def test_model_unpack_replaces_linked_directories(tmp_path: Path, place: Path, outside: Path) -> None:
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("sub/", "")
        opened.writestr("sub/.bashrc", "the model's")
        opened.writestr("other/deep/.bashrc", "the model's")
    (place / "sub").symlink_to(outside.parent)
    (place / "other").mkdir()
    (place / "other" / "deep").symlink_to(outside.parent)
    unpack(str(archive), str(place))
    assert is_as_it_was(outside)
    assert (place / "sub" / ".bashrc").read_text() == (place / "other/deep/.bashrc").read_text() == "the model's"


def test_copy_archive_stores_complete_file_under_its_name(tmp_path: Path) -> None:
    archive, target = tmp_path / "m.zip", tmp_path / "store" / "_submitted_code" / "model.zip"
    archive.write_text("archive")
    for _ in range(2):
        copy_archive(str(archive), str(target))
    assert [(path.name, path.read_text()) for path in target.parent.iterdir()] == [("model.zip", "archive")]


def test_copy_archive_leaves_no_file_when_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(source: object, file: BinaryIO, length: int) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    (tmp_path / "m.zip").write_text("archive")
    with pytest.raises(OSError, match="No space"):
        copy_archive(str(tmp_path / "m.zip"), str(tmp_path / "store" / "model.zip"))
    assert list((tmp_path / "store").iterdir()) == []


def test_make_places_replaces_linked_directory_in_state(tmp_path: Path, outside: Path) -> None:
    launch = launch_of(tmp_path, make_dirs=("{attempt_dir}/state/results/bucket", "{attempt_dir}/data"))
    state = Path(AttemptDir(launch.attempt_dir).state)
    state.mkdir(parents=True)
    (state / "results").symlink_to(outside.parent)
    make_places(launch)
    assert is_as_it_was(outside)
    assert (state / "results" / "bucket").is_dir()
    assert not (state / "results").is_symlink()


# ----------------------------------------------------------------------------------------------- the daemon


@planted
def test_log_reader_returns_no_lines_of_planted_file(tmp_path: Path, outside: Path, plant: Plant) -> None:
    attempt = AttemptDir(str(tmp_path / "attempt-1"))
    log = Path(attempt.training_log(1))
    log.parent.mkdir(parents=True)
    plant(log, outside)
    reader = LogReader(attempt, 1, 1)
    reader.skip(since=None, tail=5)
    assert list(reader.lines(ended=True)) == []
    assert not has_log(attempt, 1)


def test_saved_checkpoint_ignores_linked_start_file(tmp_path: Path, place: Path, outside: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "old").write_text("x")
    os.utime(tmp_path / "checkpoints" / "old", (2000, 2000))
    (place / ".began-1").symlink_to(outside)
    os.utime(place / ".began-1", (time.time(), time.time()), follow_symlinks=False)
    assert saved_checkpoint(AttemptDir(str(tmp_path)), str(tmp_path / "checkpoints")).saved_at is None

"""Tests what controllers conclude from files that a learner or a user damaged or replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ffdl_batch.attempt import event_journal
from ffdl_batch.attempt.control_cell import Control, read_control
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import open_own, remove, touch, write_cell, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.attempt.phase_files import PhaseFiles
from ffdl_batch.controller.data.job_directories import DirectoryRefused, make_places
from ffdl_batch.controller.data.model_unpacking import ModelRefused, unpack
from ffdl_batch.controller.head.claim import claim_attempt
from ffdl_batch.controller.head.final_record import read_final
from ffdl_batch.controller.learner.environment import EnvironmentRefused, read_file, read_user_environment
from ffdl_batch.controller.learner.pod_exchange import PodExchange
from ffdl_batch.controller.logs.rotated_log import LogFiles
from ffdl_batch.controller.metrics.hang_detection import Pace
from ffdl_batch.controller.pod.relay import LogReader, Relay
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.outcome.controller_events import Event, Phase, Scalar, decode_events, encode_event
from ffdl_batch.domain.outcome.controller_events import EventKind as K
from tests.planted_files import NO_FILES, NO_JSON, Plant, replace
from tests.unit.controller.rig import launch_file

ALL = {**NO_FILES, **NO_JSON}
any_damage = pytest.mark.parametrize("kind", ALL)
no_file = pytest.mark.parametrize("kind", NO_FILES)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(str(tmp_path / "attempt-1"))
    for directory in (found.events, found.state, found.metrics, found.submit):
        Path(directory).mkdir(parents=True)
    return found


@any_damage
def test_controllers_treat_damaged_file_as_missing(attempt: AttemptDir, kind: str) -> None:
    for path in (attempt.control, attempt.final, attempt.event_file("node-0"), attempt.learner_metrics(1)):
        replace(Path(path), ALL[kind])
    assert read_control(attempt) == Control()
    assert read_final(attempt) is None
    assert read_events(attempt, "node-0") == []
    assert Pace(attempt.learner_metrics(1)).changed_pace() is None


@any_damage
def test_claim_refuses_attempt_whose_claim_is_damaged(attempt: AttemptDir, kind: str) -> None:
    replace(Path(attempt.claim_owner), ALL[kind])
    assert (claim_attempt(attempt, "7").run, claim_attempt(attempt, "7").owner) == (0, {})


@pytest.mark.parametrize("name", [".began-1", ".ended-1", ""])
@no_file
def test_command_was_reached_if_learner_replaced_its_record(attempt: AttemptDir, name: str, kind: str) -> None:
    phases = PhaseFiles(attempt.state)
    assert phases.began(1) is None
    if name:
        replace(Path(attempt.state, name), NO_FILES[kind])
    elif kind != "directory":
        replace(Path(attempt.state), NO_FILES[kind])
    else:
        Path(attempt.state).rmdir()
    assert phases.began(1) == ""


@pytest.mark.parametrize(
    "text", ["", "\n", "3", "9" * 5000 + "\n", "\u00b2\n", "--3\n", "1e2\n", "129\n", "-1\n", "nan\n"]
)
def test_phase_files_ignore_invalid_exit_status(attempt: AttemptDir, text: str) -> None:
    for name in (".ended-1", "learner.exit"):
        Path(attempt.state, name).write_text(text, encoding="utf-8")
    assert PhaseFiles(attempt.state).ended_status(1) is None
    assert PhaseFiles(attempt.state).status(Phase.LEARNER) == {"129\n": 129, "-1\n": -1}.get(text)


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "-1", "x"])
def test_seat_ignores_invalid_numbers(tmp_path: Path, text: str) -> None:
    seat = PodExchange(str(tmp_path))
    Path(seat.path).mkdir()
    for name in ("begun", "ended"):
        Path(seat.file(name)).write_text(f"{text} {text}\n" if name == "ended" else f"{text}\n", encoding="utf-8")
    assert (seat.ended(), seat.shim) == (None, 0)


@no_file
def test_writers_replace_planted_file(attempt: AttemptDir, kind: str) -> None:
    path = Path(attempt.final)
    writers: tuple[Callable[[str], None], ...] = (
        lambda name: write_cell(name, {"a": 1}),
        lambda name: write_text(name, "{}"),
        touch,
        lambda name: os.close(open_own(name, os.O_WRONLY)),
    )
    for write in writers:
        replace(path, NO_FILES[kind])
        write(str(path))
        assert path.is_file() and not path.is_symlink()
    replace(path, NO_FILES[kind])
    remove(str(path))
    assert not os.path.lexists(path)


def test_writer_keeps_content_of_directory_that_it_replaces(attempt: AttemptDir) -> None:
    Path(attempt.final).mkdir()
    Path(attempt.final, "data").write_text("a user's", encoding="utf-8")
    write_cell(attempt.final, {})
    (kept,) = Path(attempt.path).glob("final.json.replaced-*/data")
    assert kept.read_text(encoding="utf-8") == "a user's"


@any_damage
def test_log_files_begin_again_if_marks_and_cell_are_damaged(attempt: AttemptDir, kind: str) -> None:
    for path in (attempt.marks(1), attempt.log_files(1), attempt.training_log(1)):
        replace(Path(path), ALL[kind] if path != attempt.training_log(1) or kind in NO_FILES else Path.touch)
    LogFiles(attempt.path, 1, LogLimits()).write(b"one\n")
    assert tail(attempt.training_log(1)) == ("one",)
    assert LogReader(attempt, 1).read(0, 100) == (0, b"one\n")


@pytest.mark.parametrize("mark", ["inf 1 1", "nan 1 1", f"1.0 {'9' * 400} 1", "1.0 -1 1", "1.0 \u00b2 1"])
def test_log_files_ignore_invalid_mark(attempt: AttemptDir, mark: str) -> None:
    Path(attempt.marks(1)).write_text(f"{mark}\n", encoding="utf-8")
    log = LogFiles(attempt.path, 1, LogLimits())
    log.write(b"one\n")
    assert (log.position, log.lines) == (4, 1)


@any_damage
def test_relay_skips_damaged_files(attempt: AttemptDir, kind: str) -> None:
    said: list[str] = []
    launch = launch_file(attempt.path, job_dir=str(Path(attempt.path).parent))
    for path in (attempt.event_file("head"), attempt.event_file("node-0"), attempt.stop, attempt.learner_metrics(1)):
        replace(Path(path), ALL[kind])
    relay = Relay(launch, 0, 1, said.append)
    for _ in range(3):
        relay.look()
    if kind in NO_FILES:
        assert said == []


@any_damage
def test_environment_that_is_damaged_is_refused_with_its_name(attempt: AttemptDir, kind: str) -> None:
    replace(Path(attempt.environment), ALL[kind])
    if kind == "empty":
        assert read_user_environment(read_file(attempt.environment)) == {}
        return
    with pytest.raises(EnvironmentRefused, match=r"environment\.json"):
        read_user_environment(read_file(attempt.environment))


@any_damage
def test_model_that_is_damaged_is_refused_with_its_name(tmp_path: Path, kind: str) -> None:
    replace(tmp_path / "model.zip", ALL[kind])
    with pytest.raises(ModelRefused, match=r"model\.zip"):
        unpack(str(tmp_path / "model.zip"), str(tmp_path / "model"))


def test_directory_replaced_by_file_is_reported_as_user_error(attempt: AttemptDir) -> None:
    replace(Path(attempt.results), Path.touch)
    launch = launch_file(attempt.path, job_dir=str(Path(attempt.path).parent))
    with pytest.raises(DirectoryRefused, match="results cannot be made") as refused:
        make_places(launch)
    assert refused.value.code == "C103"


PARENTS = ("named pipe", "link to a file", "link to itself", "socket")


def _replace_parent(path: Path, plant: Plant) -> None:
    replace(path.parent, plant)


DAMAGE: dict[str, Callable[[Path], object]] = {
    **{kind: partial(replace, plant=plant) for kind, plant in {**NO_FILES, **NO_JSON}.items()},
    "missing": Path.unlink,
    "cut": lambda path: os.truncate(path, 30),
    "another number": lambda path: path.write_text(path.read_text().replace('"seq":1', '"seq":9')),
    "newer format": lambda path: path.write_text(path.read_text().replace('"format":', '"format":9')),
    "no directory": lambda path: shutil.rmtree(path.parent),
    **{f"{kind} in place of the directory": partial(_replace_parent, plant=NO_FILES[kind]) for kind in PARENTS},
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_journal_restores_its_events_if_file_is_damaged_meanwhile(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "events" / "node-0.jsonl"
    path.parent.mkdir()
    Journal(str(path), "node-0").append(K.STARTED, host="before")
    journal = Journal(str(path), "node-0")
    for host in ("a", "b"):
        journal.append(K.STARTED, host=host)
    DAMAGE[kind](path)
    journal.append(K.ENDED)
    assert journal.close()
    assert [(e.seq, e.fields.get("host")) for e in decode_events(path.read_text())] == [
        (1, "before"), (2, "a"), (3, "b"), (4, None),
    ]  # fmt: skip


FOREIGN = [K.ENDED, K.LEARNER_ENDED, K.FAULT, K.FINAL, K.PHASE, K.STORED, K.STARTED]


def append_foreign(path: Path, kind: K) -> None:
    """What a learner can do."""
    fields: dict[str, Scalar] = {"learner_id": 1, "code": "S106", "exit_code": 0}
    with path.open("a") as file:
        file.write(encode_event(Event(9, 1.0, "node-0", kind, fields)))


@pytest.mark.parametrize("kind", FOREIGN)
def test_journal_removes_event_of_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: K
) -> None:
    monkeypatch.setattr(event_journal, "CHECK_S", 0.0)
    path = tmp_path / "node-0.jsonl"
    journal = Journal(str(path), "node-0")
    journal.append(K.STARTED)
    journal.append(K.READY)
    append_foreign(path, kind)
    assert journal.flush()
    assert decode_events(path.read_text()) == journal.events, "while the job runs"
    append_foreign(path, kind)
    journal.append(K.ENDED)
    assert decode_events(path.read_text()) == journal.events, "with the next event"
    append_foreign(path, kind)
    assert journal.close()
    assert decode_events(path.read_text()) == journal.events, "at the end"
    assert capsys.readouterr().err.count(f"{path}: another process changed this file") == 1


@pytest.mark.parametrize("kind", [K.STARTED, K.ENDED])
def test_journal_keeps_events_of_newer_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: K) -> None:
    monkeypatch.setattr(event_journal, "CHECK_S", 0.0)
    path = tmp_path / "node-0.jsonl"
    journal = Journal(str(path), "node-0", superseded=lambda: True)
    journal.append(K.STARTED)
    append_foreign(path, kind)
    assert journal.flush() and journal.close()
    assert [event.kind for event in decode_events(path.read_text())] == [K.STARTED, kind]

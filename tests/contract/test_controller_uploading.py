"""What is sent while learners run: nothing is started, and nothing said, where nothing has changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.controller.data.transfer_progress import notes_once
from ffdl_batch.controller.data.transfers import REST_S, send_while_running
from ffdl_batch.domain.data.staging_protocol import Done, Line, Note, Progress, Transfer, write_line
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.launch.launch_file import LaunchFile, Stores
from tests.contract.controller_rig import LIMITS, Rig, job_id, rig

PROGRAM = """
import sys
from pathlib import Path
here = Path(__file__).parent
with (here / "tasks").open("a") as tasks:
    tasks.write(Path(sys.argv[1]).read_text().replace(chr(10), " ") + chr(10))
print((here / "says").read_text(), end="")
"""


class Sending:
    """A job whose results go to a store, by a program that only notes what it is told."""

    def __init__(self, run: Rig, base: Path) -> None:
        self.run, self.base, self.lines = run, base, list[Line]()
        (base / "program.py").write_text(PROGRAM)
        self.says(Done(1, 1, 0, 0.1))
        store = StoreAddress(StoreKind.FILE, container=str(base / "store"))
        self.results = Path(run.attempt.results)
        self.results.mkdir(parents=True, exist_ok=True)
        self.launch: LaunchFile = run.write(
            "true",
            uploads=(Transfer(store, job_id(), str(self.results)),),
            staging=(sys.executable, str(base / "program.py")),
            stores=Stores(),
            limits=LIMITS,
        )

    def says(self, *lines: Line) -> None:
        """What the program says from now on."""
        (self.base / "says").write_text("".join(map(write_line, lines)))

    def tasks(self) -> list[dict[str, object]]:
        """What it was told, each time."""
        path = self.base / "tasks"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def send(self, stored: str) -> str:
        """A round."""
        return send_while_running(self.launch, 0, lambda: None, self.lines.append, stored)


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    """A job that has one result."""
    with rig(tmp_path) as run:
        made = Sending(run, tmp_path)
        (made.results / "model.bin").write_bytes(b"weights")
        yield made


def test_running_upload_starts_no_program_when_results_are_unchanged(sending: Sending) -> None:
    stored = sending.send("")
    assert [task["rest_s"] for task in sending.tasks()] == [REST_S]
    sending.lines.clear()
    for _ in range(3):
        assert sending.send(stored) == stored
    assert (len(sending.tasks()), sending.lines) == (1, [])
    (sending.results / "epoch-2").write_bytes(b"more")
    assert sending.send(stored) not in ("", stored)
    assert len(sending.tasks()) == 2


def test_running_upload_runs_again_after_files_were_deferred(sending: Sending) -> None:
    sending.says(Done(1, 0, 0, 0.1, 0, 1))
    stored = sending.send("")
    assert stored == ""
    sending.says(Done(1, 1, 0, 0.1))
    assert sending.send(stored) != ""
    assert len(sending.tasks()) == 2


def test_running_upload_resends_file_that_changed_during_upload(sending: Sending) -> None:
    program = sending.base / "program.py"
    target = str(sending.results / "model.bin")
    program.write_text(f"{PROGRAM}\nPath({target!r}).write_bytes(b'later')\n")
    stored = sending.send("")
    program.write_text(PROGRAM)
    assert sending.send(stored) != stored
    assert len(sending.tasks()) == 2


def test_notes_once_passes_each_note_once_and_all_progress() -> None:
    lines: list[Line] = []
    tell = notes_once(lines.append)
    for why in ("a", "b", "a"):
        tell(Note(why))
        tell(Progress(1, 1, 1, 1, 0.0))
    assert [line.why for line in lines if isinstance(line, Note)] == ["a", "b"]
    assert len(lines) == 5

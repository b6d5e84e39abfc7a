"""What controllers do about a file system that hangs, is full, or is gone for a while."""

from __future__ import annotations

import errno
import io
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ffdl_batch.attempt import file_writer as files
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.filesystem_retry import patiently
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.head import claim as claiming
from ffdl_batch.controller.head.claim import claim_attempt
from ffdl_batch.controller.metrics.monitor import Monitor
from ffdl_batch.domain.metrics.records import Collecting
from ffdl_batch.domain.outcome.controller_events import EventKind as K
from ffdl_batch.domain.outcome.controller_events import decode_events
from ffdl_batch.host import nonblocking_stderr as complaints_module
from ffdl_batch.host.nonblocking_stderr import MOST_WAITING, NonblockingStderr
from ffdl_batch.host.worker_thread import Full, WorkerThread
from tests.unit.controller.rig import launch_file, refusal, until


class Failures:
    """Errors to raise, one at each call; then none."""

    def __init__(self, *errors: int) -> None:
        self._left = [OSError(number, os.strerror(number)) for number in errors]

    def __call__(self) -> None:
        if self._left:
            raise self._left.pop(0)


# ------------------------------------------------------------------------------------------------------ handing over


def test_handover_returns_default_while_earlier_task_hangs(held: threading.Event) -> None:
    worker = WorkerThread("test")
    assert worker.ask(lambda: 1, 0, 0.0) == 1  # not begun: done here
    worker.begin()
    done: list[int] = []

    def note() -> str:
        done.append(1)
        return "in time"

    assert worker.ask(lambda: held.wait(120), None, 0.05) is None
    assert worker.ask(note, "late", 0.05) == "late"
    assert worker.is_behind and not done
    for _ in range(100):
        worker.ask(lambda: done.append(2), None, 0.0)
    held.set()
    until(lambda: not worker.is_behind)
    assert worker.ask(lambda: "in time", "late", 60.0) == "in time"
    assert done == [1] + [2] * 100  # what was taken is done


def test_handover_rejects_task_when_queue_is_full(held: threading.Event) -> None:
    worker = WorkerThread("test", 2)
    worker.begin()
    begun, done = threading.Event(), list[int]()
    worker.ask(lambda: (begun.set(), held.wait(120)), None, 0.05)  # type: ignore[func-returns-value]
    assert begun.wait(120)
    for number in (1, 2):
        worker.ask(lambda one=number: done.append(one), None, 0.0)  # type: ignore[misc]
    with pytest.raises(Full, match="test: 2 pieces of work wait already"):
        worker.ask(lambda: done.append(3), None, 0.0)
    held.set()
    until(lambda: not worker.is_behind)
    assert worker.ask(lambda: "in time", "late", 60.0) == "in time"
    assert done == [1, 2]


def test_complaints_count_lost_messages_while_write_hangs(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, begun = io.BytesIO(), threading.Event()

    def write(_: int, data: bytes) -> int:
        begun.set()
        held.wait(120)
        return said.write(data)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(complaints_module, "PATIENCE_S", 0.0)
    complaints = NonblockingStderr()
    complaints.begin()
    complaints.write("first\n")
    assert begun.wait(60)
    for _ in range(MOST_WAITING + 7):
        complaints.write("more\n")
    held.set()
    until(lambda: said.getvalue().count(b"more\n") == MOST_WAITING)
    monkeypatch.setattr(complaints_module, "PATIENCE_S", 60.0)
    complaints.write("last\n")
    text = said.getvalue().decode()
    assert "ffdl-controller: 7 messages could not be written here\n" in text and text.endswith("last\n")


def test_handover_raises_error_to_waiting_caller_and_prints_late_error(
    held: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        held.wait(120)
        raise OSError(errno.EIO, "broken")

    worker = WorkerThread("files")
    worker.begin()
    worker.ask(fail, None, 0.05)
    held.set()
    with pytest.raises(OSError, match="broken"):
        worker.ask(fail, None, 60.0)
    assert "files: OSError: [Errno 5] broken" in capsys.readouterr().err


def test_journal_keeps_event_order_while_write_hangs(
    tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node-0.jsonl"
    journal = Journal(str(path), "node-0", patience_s=60.0)
    journal.append(K.STARTED)
    journal.begin()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: (held.wait(120), write(fd, data))[1])
        journal.append(K.ASKED, reason="halt")
        journal.append(K.LEARNER_ENDED, learner_id=1)
        assert not journal.flush()
        assert [event.kind for event in journal.events] == [K.STARTED, K.ASKED, K.LEARNER_ENDED]
        assert [event.kind for event in decode_events(path.read_text())] == [K.STARTED]
        held.set()
        assert journal.close()
    written = [(event.seq, event.kind) for event in decode_events(path.read_text())]
    assert written == [(1, K.STARTED), (2, K.ASKED), (3, K.LEARNER_ENDED)]


def test_journal_keeps_all_events_after_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of a line got there, and could not be taken back."""
    path = tmp_path / "head.jsonl"
    journal = Journal(str(path), "head")
    write, fail = os.write, Failures(errno.EIO, errno.EIO)

    def tear(descriptor: int, data: bytes) -> int:
        try:
            fail()
        except OSError:
            write(descriptor, data[:9])
            raise
        return write(descriptor, data)

    monkeypatch.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
    monkeypatch.setattr(os, "write", tear)
    journal.append(K.STARTED)
    journal.append(K.CLAIMED)
    assert not decode_events(path.read_text())
    assert journal.flush()
    assert [event.kind for event in decode_events(path.read_text())] == [K.STARTED, K.CLAIMED]


def test_complaints_count_lost_messages_when_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    said, fail = io.BytesIO(), Failures(errno.ENOSPC, errno.EIO)

    def write(_: int, data: bytes) -> int:
        fail()
        return said.write(data)

    monkeypatch.setattr(os, "write", write)
    complaints = NonblockingStderr()
    monkeypatch.setattr(sys, "stderr", complaints)
    for text in ("one\n", "two\n", "three\n"):
        sys.stderr.write(text)
    assert said.getvalue() == b"ffdl-controller: 2 messages could not be written here\nthree\n"


# ------------------------------------------------------------------------------------------------------- trying again


@pytest.mark.parametrize(
    ("error", "awaits_space", "passes"),
    [
        (errno.ESTALE, False, True),
        (errno.EIO, False, True),
        (errno.ENOSPC, True, True),
        (errno.ENOSPC, False, False),
        (errno.EACCES, True, False),
        (errno.ENOENT, True, False),
    ],
)
def test_patiently_retries_only_transient_errors(tmp_path: Path, error: int, awaits_space: bool, passes: bool) -> None:
    fail, rests = Failures(error), list[float]()

    def work() -> str:
        fail()
        return "done"

    if passes:
        assert patiently(work, str(tmp_path), 60.0, rests.append, awaits_space=awaits_space) == "done"
    else:
        with pytest.raises(OSError) as raised:
            patiently(work, str(tmp_path), 60.0, rests.append, awaits_space=awaits_space)
        assert raised.value.errno == error
    assert len(rests) == int(passes)


@pytest.mark.parametrize(("place", "passes"), [("job/attempt-1/claim", True), ("job/archive", True), ("store", False)])
def test_patiently_retries_read_only_file_system_only_in_job_directory(
    tmp_path: Path, place: str, passes: bool
) -> None:
    """A store of the user's that is read-only is a wrong manifest, and said at once."""
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / place))
    answers = iter([refused, None])
    rests: list[float] = []

    def work() -> None:
        if (answer := next(answers)) is not None:
            raise answer

    attempt = str(tmp_path / "job" / "attempt-1")
    Path(attempt).mkdir(parents=True)
    if passes:
        patiently(work, attempt, 60.0, rests.append, awaits_space=True)
    else:
        with pytest.raises(OSError, match="Read-only"):
            patiently(work, attempt, 60.0, rests.append, awaits_space=True)
    assert len(rests) == int(passes)


def test_patiently_retries_missing_file_only_if_directory_is_missing(tmp_path: Path) -> None:
    place = tmp_path / "attempt-1"

    def mount(_: float) -> None:
        place.mkdir()
        (place / "launch.json").write_text("{}")

    assert patiently((place / "launch.json").read_text, str(place), 60.0, mount) == "{}"
    with pytest.raises(FileNotFoundError):
        patiently((place / "other").read_text, str(place), 60.0, mount)


def test_patiently_raises_error_after_time_limit(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        patiently(refusal(errno.EIO), str(tmp_path), 0.0)


def test_claim_succeeds_on_retry_after_sync_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had been renamed into place; what came after that failed."""
    attempt = AttemptDir(str(tmp_path))
    sync, fail = files.sync_directory, Failures(errno.EIO)

    def fail_once(path: str) -> None:
        fail()
        sync(path)

    monkeypatch.setattr(claiming, "sync_directory", fail_once)
    made = patiently(lambda: claim_attempt(attempt, "7"), attempt.path, 60.0, lambda _: None)
    assert (made.run, made.owner["pid"]) == (1, os.getpid())
    assert claim_attempt(attempt, "8").run == 0


def test_claim_leaves_no_files_when_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "write_cell", refusal(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        claim_attempt(AttemptDir(str(tmp_path)), "7")
    assert list(tmp_path.iterdir()) == []


def test_meter_reports_incomplete_metrics_when_file_system_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    reached = threading.Event()

    def hang(_: Monitor) -> None:
        reached.set()
        held.wait()

    monkeypatch.setattr(Monitor, "_prepare", hang)
    monkeypatch.setattr("ffdl_batch.controller.metrics.monitor.LEAST_END_S", 0.05)
    launch = launch_file(str(tmp_path / "attempt-1"), collectors=("false",), metrics=Collecting("tensorboard"))
    journal = Journal(str(tmp_path / "events.jsonl"), "node-0")
    meter = Monitor(launch, 0, [1], journal)
    meter.begin(dict, {})
    assert reached.wait(60)
    meter.learner_ended(1)
    meter.finish(0.05)
    (told,) = journal.events
    assert told.kind is K.METRICS and "metrics may be incomplete" in str(told.fields["message"])
    assert meter.pids == set()


def test_write_text_names_file_in_error_and_keeps_old_content(tmp_path: Path) -> None:
    """write(2) itself names none. No file may grow over 4 KiB here."""
    path, (soft, hard) = tmp_path / "task.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text("before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large") as failed:
            files.write_text(str(path), "x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (failed.value.errno, failed.value.filename) == (errno.EFBIG, str(path))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("task.json", "before")]


HANGING_UPLOAD = """
import threading, types
from ffdl_batch.controller.data import result_storage as uploading
uploading.send_while_running = lambda *_: threading.Event().wait()
uploading.END_S = 0.01
limits = types.SimpleNamespace(upload_s=0)
running = uploading.Uploading(types.SimpleNamespace(uploads=("results",), limits=limits), 0)
running.begin()
running.finish()
"""


def test_controller_ends_while_upload_to_hanging_store_continues() -> None:
    subprocess.run([sys.executable, "-c", HANGING_UPLOAD], check=True, timeout=300)

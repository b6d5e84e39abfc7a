"""A node whose slurmd answers while controllers and learners stand still: a real daemon and real controllers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.host.processes import all_processes, descendants
from tests.crash.driver import LIMIT_S
from tests.faults.slurm_office import Office

SILENT_S = 14
HEARTBEAT_S = 0.5
TRAINS = (
    "echo $FFDL_ATTEMPT >> {base}/attempts; if [ $FFDL_ATTEMPT = 2 ]; then cat $CHECKPOINT_DIR/saved; exit; fi; "
    "echo weights > $CHECKPOINT_DIR/saved; while true; do echo on >> {base}/steps; sleep 0.2; done"
)


NOTE = """\
import sqlite3, sys
with sqlite3.connect(sys.argv[1], uri=True) as database, open(sys.argv[2], "a") as file:
    file.write(f"{database.execute('SELECT pending_reason FROM jobs').fetchall()}\\n")
"""


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(f"silent_s = {SILENT_S}\n{config.read_text()}")
    made.start()
    yield made
    made.close()


def attempt_of(office: Office, job_id: str, number: int = 1) -> AttemptDir:
    return Root(str(office.state)).job(job_id).attempt(number)


def trains(office: Office) -> str:
    """A job whose controllers beat often, and whose learner has saved."""
    office.hold()
    job_id = office.accept(TRAINS)
    office.until(job_id, "QUEUED")
    launch = Path(attempt_of(office, job_id).launch)
    body = json.loads(launch.read_text())
    body["limits"]["heartbeat_s"] = HEARTBEAT_S
    launch.write_text(json.dumps(body))
    office.release()
    office.until(job_id, "PROCESSING")
    office.wait((office.base / "steps").exists, "a step")
    return job_id


def freeze(office: Office, job_id: str) -> list[int]:
    """Stop controllers and learners of the first attempt, controllers first; their ids."""
    launch = os.fsencode(attempt_of(office, job_id).launch)
    controllers = [pid for pid in all_processes() if launch in command_line(pid)]
    stopped = set(controllers)
    for pid in controllers:
        stopped |= set(descendants(pid, all_processes()))
    assert len(stopped) > len(controllers) >= 2, "a head, a node controller, and a learner"
    send([*controllers, *(stopped - set(controllers))], signal.SIGSTOP)
    return sorted(stopped)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def note_reasons(office: Office) -> Path:
    """A file that gets what `ffdl show` tells as pending_reason, each time before scancel is run."""
    noted, script = office.base / "noted", office.base / "note.py"
    script.write_text(NOTE)
    database = f"file:{office.state}/ffdl.sqlite3?mode=ro"
    office.wrap("scancel", f'{sys.executable} {script} "{database}" {noted}; exec "$FAKE" "$@"')
    return noted


def is_marked(office: Office, job_id: str) -> bool:
    cell = json.loads(Path(attempt_of(office, job_id).control).read_text())
    return cell["abandon_mark"] is not None


def goes_on_once(office: Office, job_id: str) -> dict[str, Any]:
    job = office.until(job_id, "COMPLETED", "FAILED", "CANCELLED")
    assert job["state"] == "COMPLETED", job
    assert [one["interruption"] for one in job["attempts"]] == ["node_failure", ""], job["attempts"]
    assert (office.base / "attempts").read_text() == "1\n2\n"
    log = Path(attempt_of(office, job_id, 2).training_log(1)).read_text()
    assert "weights" in log, "it goes on from the checkpoint"
    return job


def test_daemon_abandons_silent_attempt_and_continues_job_once(office: Office) -> None:
    """Slurm kills what does not end."""
    job_id = trains(office)
    noted = note_reasons(office)
    frozen = freeze(office, job_id)
    office.wait(lambda: bool(office.calls("scancel")), "a request to end it")
    assert "will be abandoned at" in noted.read_text(), "its owner is warned before"
    assert is_marked(office, job_id)
    (native,) = [record["id"] for record in office.accepted()[:1]]
    assert office.calls("scancel")[0][-1] == native
    send(frozen, signal.SIGKILL)
    job = goes_on_once(office, job_id)
    assert "n1" in job["nodes"] or "n2" in job["nodes"]
    exclude = office.accepted()[1]
    assert json.loads((office.slurm / "jobs" / f"{exclude['id']}.json").read_text())["excluded"]
    office.wait(lambda: not set(frozen) & all_processes().keys(), "the end of who woke up")


def kill_with_its_questions(office: Office) -> None:
    """KILL to the daemon, and to the commands that it runs: they would go on, and reach Slurm later."""
    assert office.daemon is not None
    send([office.daemon.pid], signal.SIGSTOP)
    send(descendants(office.daemon.pid, all_processes()), signal.SIGKILL)
    office.daemon.wait(LIMIT_S)


def test_daemon_cancels_abandoned_attempt_after_kill_between_mark_and_scancel(office: Office) -> None:
    job_id = trains(office)
    frozen = freeze(office, job_id)
    office.spoil("scancel", "down:always")
    office.wait(lambda: is_marked(office, job_id), "a mark")
    kill_with_its_questions(office)
    office.spoil("scancel")
    assert office.accepted()[0]["state"] == "RUNNING"
    office.start()
    office.wait(lambda: office.accepted()[0]["state"] == "CANCELLED", "the end of the allocation")
    send(frozen, signal.SIGKILL)
    goes_on_once(office, job_id)


def test_controllers_end_abandoned_attempt_on_wakeup_without_scancel(office: Office) -> None:
    """Nobody tells them but the mark."""
    job_id = trains(office)
    frozen = freeze(office, job_id)
    office.spoil("scancel", "down:always")
    office.wait(lambda: is_marked(office, job_id), "a mark")
    send(frozen, signal.SIGCONT)
    goes_on_once(office, job_id)
    assert "abandoned this run" in Path(attempt_of(office, job_id).event_file("node-0")).read_text()

"""Releases meet: the database, launch file, daemon and controllers of one release with live jobs of another.

Each directory `tests/captured/release-N` is what release N left. A release that changes a format or the schema captures
the one before it, and these tests run on it, too. `later_release` stands for the next one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from ffdl_batch import __version__
from ffdl_batch.admin.database.check import check
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.controller.attempt_commands import EXIT_BAD_LAUNCH_FILE, EXIT_PLATFORM
from ffdl_batch.domain.file_format import FORMAT
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.launch.launch_file import decode, encode, succeed
from ffdl_batch.domain.outcome.controller_events import EventKind, GoesOn, Outcome, decode_events
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.running_clock import SystemClock
from ffdl_batch.store import Store, open_store
from ffdl_batch.store.database import connect
from ffdl_batch.store.existing_database import connect_existing
from ffdl_batch.store.schema_upgrade import REVISIONS, Standing, bring_up_to_date, standing_of
from tests.captured.releases import (
    ELSEWHERE,
    JOB_ID,
    LATER,
    RELEASES,
    give_back,
    later_release,
    put_dump,
    put_job,
    running_dump,
    take_away,
)
from tests.conftest import POSTGRES
from tests.contract.controller_rig import MARK, ROOT, Rig, rig
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.crash.fuzz.companions import fork_child
from tests.postgres import PostgresServer
from tests.unit.store.jobs import add_job

NATIVE_ID = f"{JOB_ID}-1"
NEWER = FORMAT + 1
TIME_S = 120
"""A time limit that no training here reaches; an early warning of it is not yet taken for a preemption."""


@pytest.fixture(params=RELEASES, ids=[path.name for path in RELEASES])
def release(request: pytest.FixtureRequest) -> Path:
    """The files of an earlier release."""
    path: Path = request.param
    return path


def words(host: str) -> dict[str, str]:
    return {"PYTHON": sys.executable, "CODE": str(ROOT), "HOST": host, "BOOT": "00000000-0000-0000-0000-000000000000"}


def up_to_the_learner(events: Path) -> str:
    """Cut an event file to its content while the learner ran; return the whole text."""
    whole = events.read_text()
    lines = whole.splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    last = max(n for n, kind in enumerate(kinds) if kind in ("claimed", "started", "learner_started", "phase"))
    if "learner_started" in kinds:
        last = kinds.index("learner_started")
    events.write_text("".join(lines[: last + 1]))
    return whole


# ------------------------------------------------------------------------------------------------------- the database


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of this release with two jobs."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    if server is None:
        fill(f"sqlite:///{tmp_path}/jobs.db")
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with server.database() as name:
        fill(server.url(name))
        yield server.url(name)


def fill(url: str) -> None:
    store = open_store(url)
    for key in ("first", "second"):
        add_job(store, key)
    store.close()


def jobs_of(store: Store) -> list[object]:
    return [(job, store.history(job.id)) for job in store.list_jobs(uid=None)]


def standing(url: str) -> Standing:
    database = connect_existing(url)
    with database.reading() as connection:
        found = standing_of(connection)
    database.close()
    return found


def faults(url: str) -> list[object]:
    database = connect_existing(url)
    found = check(database).faults
    database.close()
    return list(found)


def test_store_opens_database_of_earlier_release(release: Path, tmp_path: Path) -> None:
    file = tmp_path / "state" / "ffdl.sqlite3"
    put_dump(running_dump(release, tmp_path, time.time() - 30, words(ELSEWHERE)), file)
    store = open_store(f"sqlite:///{file}")
    job = store.get(JOB_ID)
    assert job is not None and (job.state, job.attempt) == (JobState.PROCESSING, 1)
    assert [attempt.token for attempt in store.attempts(JOB_ID)] == [f"{JOB_ID}-1"]
    store.close()
    assert standing(f"sqlite:///{file}").revision == REVISIONS[-1]
    assert faults(f"sqlite:///{file}") == []


def test_open_store_upgrades_database_and_keeps_jobs(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    before = jobs_of(store)
    store.close()
    with later_release(tmp_path):
        store = open_store(url)
        assert jobs_of(store) == before
        add_job(store, "third")
        columns = {column["name"] for column in inspect(store.engine).get_columns("history")}
        assert {f"later_{revision}" for revision in LATER} <= columns
        store.close()
        found = standing(url)
        assert (found.revision, found.release, found.missing) == (LATER[-1], __version__, ())
        assert faults(url) == []
    assert not standing(url).is_known


def die_at_the_commit(url: str, side: str) -> None:
    """A daemon's start that is killed before or after its next commit."""
    database = connect(url, None, SystemClock())
    dialect = database.engine.dialect
    commit = dialect.do_commit

    def killed(connection: Any) -> None:
        if side == "after":
            commit(connection)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(dialect, "do_commit", killed)  # noqa: B010 - a method
    bring_up_to_date(database)


def test_schema_upgrade_resumes_after_kill_before_or_after_any_commit(url: str, tmp_path: Path) -> None:
    with later_release(tmp_path):
        for previous, revision in zip((REVISIONS[-1], *LATER), LATER, strict=False):
            for side, expected in (("before", previous), ("after", revision)):
                child = fork_child(tmp_path / "log", partial(die_at_the_commit, url, side))
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
                assert standing(url).revision == expected
        store = open_store(url)
        assert len(jobs_of(store)) == 2
        store.close()


def upgrade_at_once(url: str, start: int, ready: int, applied: Path) -> None:
    """Upgrade when all processes that have `ready` open, the other end of the pipe `start`, have closed it."""
    os.close(ready)
    database = connect(url, None, SystemClock())
    os.read(start, 1)
    applied.write_text(" ".join(bring_up_to_date(database).applied))
    database.close()


@pytest.mark.parametrize("url", [POSTGRES], indirect=True)
def test_schema_upgrade_applies_each_revision_once_for_concurrent_daemons(url: str, tmp_path: Path) -> None:
    start, ready = os.pipe2(os.O_CLOEXEC)
    with later_release(tmp_path):
        files = [tmp_path / f"applied-{number}" for number in range(3)]
        work = [partial(upgrade_at_once, url, start, ready, file) for file in files]
        children = [fork_child(tmp_path / "log", one) for one in work]
        os.close(ready)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(start)
    assert codes == [0, 0, 0], (tmp_path / "log").read_text()
    assert sorted(" ".join(file.read_text() for file in files).split()) == list(LATER)


# ------------------------------------------------------------------------------- the daemon, and controllers before it


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The daemon with the local backend."""
    more = {"FFDL_BACKEND": "local", "FFDL_JOBS_DIR": str(tmp_path / "jobs")}
    with site_in(tmp_path, more_environment=more) as made:
        yield made


def test_daemon_finishes_job_of_controllers_from_previous_release(site: Site, release: Path) -> None:
    """The daemon is replaced while the first of three attempts runs; the controllers write the rest."""
    base, at = site.directory, time.time() - 30
    job = put_job(release, base, at, words(ELSEWHERE))
    later = take_away(job, "attempt-[23]/*", "attempt-[23]/*/*", "attempt-1/local/exit.json", "attempt-1/[fsp]*.json")
    later |= {f"attempt-1/events/{name}.jsonl": up_to_the_learner(job / f"attempt-1/events/{name}.jsonl") for name in
              ("head", "node-0")}  # fmt: skip
    put_dump(running_dump(release, base, at, words(ELSEWHERE)), site.state / "ffdl.sqlite3")
    with sqlite3.connect(site.state / "ffdl.sqlite3") as connection:
        connection.execute("UPDATE jobs SET uid = ?", (os.getuid(),))
    connection.close()

    site.start(program=PLAIN)
    for _ in range(5):  # no file says yet that the attempt has ended
        assert site.state_of(JOB_ID) == "PROCESSING"
        time.sleep(0.3)
    give_back(job, {name: text for name, text in later.items() if not name.startswith("attempt-1")})
    last = {name: text for name, text in later.items() if name.startswith("attempt-1")}
    for part in (
        "/events/",
        "/stop.json",
        "/final.json",
        "",
    ):  # in the order in which they come; the supervisor writes last
        give_back(job, {name: text for name, text in last.items() if part in name})
    (base / "jobs" / "doorbell" / JOB_ID).touch()
    until(lambda: site.state_of(JOB_ID) == "COMPLETED", f"the job to be seen complete; {site.log}")

    shown = site.ask("GET", f"/api/v1/jobs/{JOB_ID}")[1]["job"]
    assert [(one["native_id"], one["interruption"]) for one in shown["attempts"]] == [
        (f"{JOB_ID}-1", "timeout"), (f"{JOB_ID}-2", "timeout"), (f"{JOB_ID}-3", ""),
    ]  # fmt: skip
    assert [one["checkpoint_confirmed"] for one in shown["attempts"]] == [True, True, False]
    history = site.ask("GET", f"/api/v1/jobs/{JOB_ID}/events?follow=false")
    assert shown["exit_code"] == 0, history


# ------------------------------------------------------------------------- these controllers, and a daemon before them


@dataclass
class Before:
    """The first attempt of the captured job, as it was when its head was to start."""

    run: Rig
    job: Path

    def take(self, steps: int) -> None:
        """Have the training make so many steps, and its time limit be far away."""
        launch = self.job / "attempt-1" / "launch.json"
        launch.write_text(launch.read_text().replace("--steps 120", f"--steps {steps}"))
        change(launch, lambda body: body["limits"].update(time_s=TIME_S))

    def head(self) -> int:
        return self.run.run(native_id=NATIVE_ID)


@pytest.fixture
def before(tmp_path: Path, release: Path) -> Iterator[Before]:
    with rig(tmp_path) as run:
        job = put_job(release, tmp_path, time.time() - 30, words(ELSEWHERE))
        run.job, run.attempt = JobDir(str(job)), AttemptDir(str(job / "attempt-1"))
        with zipfile.ZipFile(job / "model.zip", "w") as archive:
            archive.write(ROOT / "docs/examples/loop/model/train.py", "train.py")
        # The rig knows its processes by a variable, which the launch file must let through.
        launch = decode(Path(run.attempt.launch).read_text())
        marked = replace(launch.learner, pass_host=(*launch.learner.pass_host, MARK))
        Path(run.attempt.launch).write_text(encode(replace(launch, learner=marked, scratch_base=str(tmp_path))))
        yield Before(run, job)


def without_later_attempts(job: Path) -> None:
    for attempt in job.glob("attempt-[23]"):
        shutil.rmtree(attempt)


def not_begun(job: Path) -> None:
    """As before the head started: the deployer's files alone."""
    without_later_attempts(job)
    take_away(job, "attempt-1/[csfp]*.json", "attempt-1/*/*.jsonl", "attempt-1/claim/*")
    (job / "attempt-1" / "claim").rmdir()


def test_controller_runs_launch_file_of_previous_release(before: Before) -> None:
    not_begun(before.job)
    before.take(10)
    assert before.head() == 0, before.run.errors
    final = before.run.final()
    assert (final.outcome, final.stored, final.native_id, final.format) == (Outcome.COMPLETED, True, NATIVE_ID, FORMAT)
    for name in ("final.json", "claim/owner.json"):
        assert json.loads(Path(before.run.attempt.path, name).read_text())["format"] == FORMAT
    lines = Path(before.run.attempt.event_file("node-0")).read_text().splitlines()
    assert {json.loads(line)["format"] for line in lines} == {FORMAT}
    assert json.loads(Path(before.run.attempt.results, "result.json").read_text())


def test_controller_continues_job_from_template_of_previous_release(before: Before) -> None:
    """The warning of its time limit comes early, as a scheduler's may."""
    not_begun(before.job)
    before.take(9999)
    head = before.run.start(native_id=NATIVE_ID)
    before.run.wait_for_log("step")
    os.kill(head.pid, signal.SIGURG)
    assert before.run.await_end() == 0, before.run.errors
    final = before.run.final()
    assert (final.interruption, final.goes_on) == ("timeout", GoesOn.SUCCESSOR), final
    following = AttemptDir(str(before.job / "attempt-2"))
    launch = decode(Path(following.launch).read_text())
    assert (launch.attempt, launch.token, launch.attempt_dir) == (2, f"{JOB_ID}-2", following.path)
    assert launch.succession is not None and launch.succession.spent.timeouts == 1
    assert json.loads(Path(following.control).read_text()) == {
        "attempt": 2,
        "requested_action": "",
        "drill": "",
        "format": FORMAT,
    }
    assert Path(following.submit_begun).exists()


def test_controller_restarts_attempt_begun_by_previous_release(before: Before) -> None:
    """Its node went down, and the scheduler started the same job again."""
    events = [before.job / f"attempt-1/events/{name}.jsonl" for name in ("head", "node-0")]
    without_later_attempts(before.job)
    take_away(before.job, "attempt-1/[csfp]*.json")
    counts = []
    for file in events:
        up_to_the_learner(file)
        os.utime(file, (1.0, 1.0))  # silent for longer than a node that was cut off lets its learners live
        counts.append(len(file.read_text().splitlines()))
    before.take(10)
    status = before.head()
    final = before.run.final()
    assert status == 0, (final.message, before.run.errors)
    assert (final.outcome, final.restart, final.stored) == (Outcome.COMPLETED, 1, True)
    for file, count in zip(events, counts, strict=True):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        assert {line["format"] for line in lines[count:]} == {FORMAT}
        assert len(decode_events(file.read_text())) == len(lines)


def _parts(found: Any, known: Any) -> Any:
    """Return of `found` what `known` has, too: a later release adds fields at any depth."""
    if isinstance(found, dict) and isinstance(known, dict):
        return {key: _parts(found[key], value) for key, value in known.items()}
    return found


def test_launch_decoder_reads_slurm_file_of_previous_release(release: Path) -> None:
    text = (release / "slurm" / "launch.json").read_text()
    text = succeed(text, str(json.loads(text)["job_id"]), 2)
    body, launch = json.loads(text), decode(text)
    assert launch.step and launch.succession is not None
    assert launch.succession.submit or launch.succession.requeue
    again = json.loads(encode(launch))
    assert _parts(again, body) == body


# ------------------------------------------------------------------------------------------- files of a release to come


def change(file: Path, alter: Callable[[dict[str, Any]], None]) -> None:
    body = json.loads(file.read_text())
    alter(body)
    whole = file.with_suffix(".whole")  # written as a whole: a controller may be reading
    whole.write_text(json.dumps(body) + "\n")
    whole.replace(file)


def test_controller_rejects_launch_file_of_newer_format(before: Before) -> None:
    not_begun(before.job)
    newer = FORMAT + 1
    change(Path(before.run.attempt.launch), lambda body: body.update(format=newer, written_by="slurm 9.1"))
    assert before.head() == EXIT_BAD_LAUNCH_FILE
    assert f"was written by slurm 9.1 in format {newer}" in before.run.errors
    assert "use a release at least as new as its writer" in before.run.errors
    assert "Traceback" not in before.run.errors
    assert not Path(before.run.attempt.claim).exists()


@pytest.mark.parametrize("name", ["final.json", "claim/owner.json", "events/node-0.jsonl"])
def test_controller_starts_no_learner_over_files_of_newer_format(before: Before, name: str) -> None:
    """A wrong final record would end the job; without one, the release that understands the files decides."""
    file = Path(before.run.attempt.path, name)
    without_later_attempts(before.job)
    if name != "final.json":
        take_away(before.job, "attempt-1/final.json")
    last = file.read_text().splitlines()[-1]
    file.write_text(json.dumps({**json.loads(last), "format": NEWER}) + "\n")
    unread = file.read_bytes()
    assert before.head() == EXIT_PLATFORM, before.run.errors
    assert f"in format {NEWER}" in before.run.errors and "Traceback" not in before.run.errors
    assert file.read_bytes() == unread
    assert not Path(before.run.attempt.training_log(1)).exists()
    assert Path(before.run.attempt.final).exists() is (name == "final.json")


def test_controller_obeys_halt_in_control_file_of_newer_format(before: Before) -> None:
    not_begun(before.job)
    before.take(9999)
    control = Path(before.run.attempt.control)
    control.write_text(json.dumps({"attempt": 1, "requested_action": "", "format": NEWER, "whatever": [1]}))
    before.run.start(native_id=NATIVE_ID)
    before.run.wait_for_log("step")
    change(control, lambda cell: cell.update(requested_action="halt"))
    assert before.run.await_end() == 0, before.run.errors
    final = before.run.final()
    assert (final.outcome, final.interruption, final.checkpoint.confirmed) == (Outcome.HALTED, "halt", True)
    said = [line for line in before.run.errors.splitlines() if f"has format {NEWER}" in line]
    assert len(said) == 1 and "it obeys what it understands" in said[0]
    assert EventKind.FAULT not in [event.kind for event in before.run.events()]

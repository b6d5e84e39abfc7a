"""PostgreSQL goes away and comes back under load: requests end clean, and what was acknowledged is done once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path

import pytest

from ffdl_batch.client import ClientError
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.crash.driver import LIMIT_S
from tests.crash.world import Findings
from tests.faults.two_daemons import OneDaemon, SharedWorld
from tests.postgres import PostgresServer, running_postgres

pytestmark = pytest.mark.postgres

DOWN_S = 5.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that this test may stop."""
    with running_postgres() as running:
        yield running


@pytest.fixture
def daemon(tmp_path: Path, server: PostgresServer) -> Iterator[OneDaemon]:
    world = SharedWorld(tmp_path, server.url(server.create_database()))
    made = OneDaemon(world, "one")
    yield made
    made.end()
    world.close()


def started(daemon: OneDaemon) -> OneDaemon:
    daemon.start()
    daemon.world.wait(daemon.answers, f"the daemon to answer: {daemon.log[-600:]}")
    return daemon


@dataclass
class User:
    """Submits without end, halts some jobs and cancels some; remembers what was answered."""

    daemon: OneDaemon
    acknowledged: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    refused: list[ClientError] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        while not self.over.is_set():
            try:
                self.acknowledged.append(self.daemon.submit())
                if len(self.acknowledged) % 3 == 0:
                    self.stop_one()
            except ClientError as error:
                self.refused.append(error)
            self.over.wait(0.4)

    def stop_one(self) -> None:
        """It counts as requested from before the request, whose answer may be lost."""
        job_id = self.acknowledged[-1]
        self.stopped.append(job_id)
        with self.daemon.client() as client:
            (client.halt if len(self.stopped) % 2 else client.cancel)(job_id)


def restart(user: User, server: PostgresServer, how: signal.Signals, down_s: float) -> None:
    """The first outage lasts until the user has met it."""
    server.stop(how)
    time.sleep(down_s)
    deadline = time.monotonic() + LIMIT_S
    while not user.refused and time.monotonic() < deadline:
        time.sleep(0.05)
    server.start()


def test_daemon_loses_and_duplicates_nothing_when_postgres_restarts_under_load(
    daemon: OneDaemon, server: PostgresServer
) -> None:
    world, user = daemon.world, User(started(daemon))
    thread = threading.Thread(target=user.work)
    thread.start()
    try:
        for how, down_s in ((signal.SIGINT, DOWN_S), (signal.SIGQUIT, 0.0), (signal.SIGQUIT, 1.0)):
            known = len(user.acknowledged)
            world.wait(lambda known=known: len(user.acknowledged) >= known + 3, "more jobs")  # type: ignore[misc]
            restart(user, server, how, down_s)
        known = len(user.acknowledged)
        world.wait(lambda: len(user.acknowledged) >= known + 3, "jobs after the last restart")
    finally:
        user.over.set()
        thread.join(2 * LIMIT_S)
    assert daemon.process is not None and daemon.process.poll() is None, "the daemon did not live through it"
    assert user.refused, "nobody met the outage, so this meant nothing"
    for error in user.refused:
        assert error.problem.exit_code == 75, error
        assert "cannot be used" in str(error) and "again" in str(error), error
    world.wait(lambda: all(job.state.is_terminal for job in world.jobs()), "the end of all jobs")
    jobs = {str(job.id): job for job in world.jobs()}
    assert set(user.acknowledged) <= jobs.keys()
    for job_id in user.acknowledged:
        ends = {JobState.COMPLETED} | ({JobState.HALTED, JobState.CANCELLED} if job_id in user.stopped else set())
        assert jobs[job_id].state in ends, (jobs[job_id], world.diagnosis())
    findings = world.examine(user.acknowledged)
    as_requested = tuple(f"{job_id} is {jobs[job_id].state} " for job_id in user.stopped)
    broken = tuple(fault for fault in findings.broken if not fault.startswith(as_requested))
    assert replace(findings, broken=broken) == Findings(), world.diagnosis()


def ffdl(daemon: OneDaemon, *verb: str) -> subprocess.CompletedProcess[str]:
    """`ffdl`, as typed."""
    return preloaded.run(
        [sys.executable, "-c", "from ffdl_batch.cli.main import main; main()", *verb],
        env=daemon.environment(), cwd=daemon.world.base, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def test_commands_report_unreachable_postgres_and_daemon_stops_cleanly(
    daemon: OneDaemon, server: PostgresServer
) -> None:
    started(daemon)
    assert ffdl(daemon, "list").returncode == 0
    server.stop()
    listed = ffdl(daemon, "list")
    assert listed.returncode == 75
    assert "the server cannot be reached: check that it runs" in listed.stderr
    assert "Traceback" not in listed.stderr + daemon.log
    status = ffdl(daemon, "daemon", "status")
    assert status.returncode == 0, status
    told = {label: text.strip() for label, _, text in (line.partition(":") for line in status.stdout.splitlines())}
    assert told["Daemon"].startswith(f"process {daemon.pid} on ")
    assert told["Live jobs"] == "not known"
    assert told["Database"].startswith("postgresql; since ")
    assert any(
        cause in told["Database"] for cause in ("the server cannot be reached", "is shutting down")
    )  # its last word
    daemon.send(signal.SIGTERM)
    assert daemon.process is not None
    assert daemon.process.wait(LIMIT_S) == 0, "it ends clean without its database, too"
    assert not (daemon.world.base / "run-one" / "s").exists()
    assert "Traceback" not in daemon.log
    listed = ffdl(daemon, "list")  # a daemon that is started now has nothing to open
    assert listed.returncode == 75
    assert "the server cannot be reached: check that it runs" in listed.stderr
    server.start()
    assert ffdl(daemon, "list").returncode == 0

"""The real ffdl-submitd, stopped or killed at a step of its work, or with a host clock that is wrong. Run as a module.

The file that TEST_PLAN names holds ``<step> <signal>``. Of all daemons with that plan the first one to reach the step
takes the file away, leaves its pid in ``<file>.done``, and sends itself the signal (STOP or KILL): nothing of it goes
on, in no thread. It does so once nothing is called ``unanswered`` beside the file: a request that waits for its answer
may be this daemon's. Steps are those that deployer, watcher and scaler name, and::

    submitting         the adapter is about to be called, lease checked and mark written
    uploading          a process that stores pending uploads is about to be started
    <who>:transaction  rows of history are written and locked, and no commit was sent
    <who>:committed    they are durable, and nobody was told yet

<who> is deployer, watcher (it listens and looks in a thread each), or request.

The files ``submitters`` and ``uploaders`` beside it get a line with the state directory of each daemon that calls the
adapter, or starts an upload. Loops with nothing to do look again within a second, and the database undoes a transaction
that stands still for so long. TEST_SUBMIT_S is how long one submission may take, in the place of two minutes.

TEST_CLOCK_S is by how much this host's wall clock is wrong; what the daemon starts has the right one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

from sqlalchemy import event

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.config import Settings
from ffdl_batch.daemon import loops
from ffdl_batch.daemon.loop_intervals import DeployPace
from ffdl_batch.daemon.main import main
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.host.egress import Networks
from ffdl_batch.runtimes.launch_request import LaunchPlan
from ffdl_batch.services.data import pending_uploads
from ffdl_batch.services.deployment import deployer
from ffdl_batch.store import database
from ffdl_slurm.adapter import SlurmScheduler
from tests.fakes.substitution import substitute

PLAN = Path(os.environ["TEST_PLAN"])
_right_time = time.time
_wrong_s = float(os.environ.get("TEST_CLOCK_S", "0"))


def reached(step: str) -> None:
    """Stop or die here, where the plan says so."""
    try:
        wanted, how = PLAN.read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return
    if wanted != step:
        return
    ours = PLAN.with_name(f"{PLAN.name}.{os.getpid()}")
    try:
        PLAN.rename(ours)
    except FileNotFoundError:  # another daemon was first
        return
    while PLAN.with_name("unanswered").exists() and not step.startswith("request:"):
        time.sleep(0.01)
    ours.write_text(str(os.getpid()), encoding="utf-8")
    ours.rename(PLAN.with_name(f"{PLAN.name}.done"))
    os.kill(os.getpid(), signal.Signals[f"SIG{how}"])
    time.sleep(0.2)  # whichever thread takes the signal, this one goes no further before all of them stand


def opener(settings: Settings) -> Platform:
    """The platform with eyes on its database."""
    platform = open_platform(settings)
    mine = threading.local()

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO history"):
            mine.has_written = True

    def committing(_connection: Any) -> None:
        if getattr(mine, "has_written", False):
            reached(f"{_who()}:transaction")

    def given_back(*_: Any) -> None:
        if getattr(mine, "has_written", False):
            mine.has_written = False
            reached(f"{_who()}:committed")

    event.listen(platform.storage.store.engine, "after_cursor_execute", executed)
    event.listen(platform.storage.store.engine, "commit", committing)
    event.listen(platform.storage.store.engine, "checkin", given_back)
    return platform


def _who() -> str:
    """Whose thread this is."""
    return {"deployer": "deployer", "watcher": "watcher", "listener": "watcher"}.get(
        threading.current_thread().name, "request"
    )


def _slow_steps_named() -> None:
    """Put names to the steps that have none of their own."""
    submit, start = SlurmScheduler.submit, pending_uploads.start_upload

    def submitting(adapter: SlurmScheduler, plan: LaunchPlan) -> NativeId:
        with PLAN.with_name("submitters").open("a", encoding="utf-8") as file:
            file.write(os.environ["FFDL_STATE_DIR"] + "\n")
        reached("submitting")
        return submit(adapter, plan)

    def uploading(
        attempt: AttemptDir, write_record: pending_uploads.WriteFinalRecord, egress: Networks | None
    ) -> pending_uploads.Upload | None:
        with PLAN.with_name("uploaders").open("a", encoding="utf-8") as file:
            file.write(os.environ["FFDL_STATE_DIR"] + "\n")
        reached("uploading")
        return start(attempt, write_record, egress)

    substitute(
        Platform,
        deployer=partialmethod(Platform.deployer, reached),
        watcher=partialmethod(Platform.watcher, reached),
        scaler=partialmethod(Platform.scaler, reached),
    )
    substitute(pending_uploads, start_upload=uploading)
    substitute(SlurmScheduler, submit=submitting)


if __name__ == "__main__":
    substitute(time, time=lambda: _right_time() + _wrong_s)
    substitute(loops, UPLOADS_FIRST_S=0.1, UPLOADS_EVERY_S=0.5, DeployPace=partial(DeployPace, longest_s=1.0))
    substitute(database, STANDSTILL_S=1)
    substitute(deployer, SUBMIT_S=float(os.environ.get("TEST_SUBMIT_S", deployer.SUBMIT_S)))
    _slow_steps_named()
    sys.exit(main(opener=opener))

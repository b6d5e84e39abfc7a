"""The parent of all lives: everything that a daemon needs is imported and built once, and each life is a fork of it.

What a fork does not bring is a thread or a connection: there is none here. The application is built once, too (its
routes cost a quarter of a second), and gets each life's own platform.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from fastapi import FastAPI
from starlette.types import Message, Scope

from ffdl_batch.config import Settings
from ffdl_batch.daemon import loops, server
from ffdl_batch.daemon import main as daemon
from ffdl_batch.daemon.connections import Peer, with_peer
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.daemon.request_context import Context
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.backends import adapters
from ffdl_batch.services.data import controller_fence, pending_uploads
from ffdl_batch.services.deployment import array_submission, delivery, deployer, waiting_jobs
from ffdl_batch.services.monitoring import job_update, scheduler_calls, watcher
from tests.crash.fuzz.companions import fork_child, kill_children
from tests.crash.fuzz.mutations import Mutation
from tests.crash.fuzz.steps import PROGRESS, WITH_CHILDREN, Plan, Steps
from tests.crash.fuzz.watching import WatchedReplies, watch_commits, watch_files, watch_loops, watch_scheduler

IMPORTED_LATE = (
    "alembic.command", "ffdl_batch.services.daemon_lock", "ffdl_batch.daemon.log_file", "ffdl_batch.manifest",
    "ffdl_batch.store.migrations.versions.v0001_first_tables", "ffdl_batch.store.migrations.versions.v0002_tokens",
    "ffdl_batch.store.migrations.versions.v0003_attempt_sizes",
    "ffdl_batch.store.migrations.versions.v0004_elastic_pools",
    "ffdl_batch.store.migrations.versions.v0005_attempt_gpus",
    "ffdl_batch.store.migrations.versions.v0006_removed_jobs",
    "httptools", "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.off", "uvicorn.loops.asyncio", "uvicorn.protocols.http.httptools_impl",
)  # fmt: skip
"""What daemons import when they first need it."""
ONLY_WITH_POSTGRES = "psycopg"
TIMES_S = {
    (job_update, "SETTLE_S"): 0.3,
    (job_update, "LONG_AGO_S"): 1.0,
    (watcher, "ACCOUNTING_LAG_S"): 0.2,
    (watcher, "LOOK_SOON_S"): 0.1,
    (deployer, "LOOK_AGAIN_S"): 0.2,
    (deployer, "HANDOVER_S"): 0.5,
    (delivery, "FAULT_PAUSE_S"): 0.8,
    (delivery, "UNCERTAIN_PAUSE_S"): 0.1,
    (scheduler_calls, "AGAIN_S"): 0.5,
    (waiting_jobs, "FIRST_PAUSE_S"): 0.1,
    (waiting_jobs, "LONGEST_DEPENDENCY_PAUSE_S"): 0.5,
    (adapters, "FIRST_PAUSE_S"): 0.05,
    (adapters, "LONGEST_PAUSE_S"): 0.2,
    (array_submission, "PAUSE_S"): 0.1,
    (array_submission, "FULL_PAUSE_S"): 0.3,
    (waiting_jobs, "PAUSE_S"): 0.5,
    (waiting_jobs, "LEAST_PAUSE_S"): 0.1,
    (controller_fence, "STILL_ALIVE_S"): 0.6,
    (controller_fence, "TWO_BEATS_S"): 0.15,
    (pending_uploads, "FIRST_PAUSE_S"): 0.2,
    (loops, "UPLOADS_FIRST_S"): 0.05,
    (loops, "UPLOADS_EVERY_S"): 0.2,
    (loops, "UPLOADS_WHILE_UPLOADING_S"): 0.05,
}
"""Patience that is shortened with the fake cluster, whose jobs take tenths of a second; lives are as short."""
TIMES_WITH_SLURM_S = {
    (pending_uploads, "FIRST_PAUSE_S"): 2.0,
    (loops, "UPLOADS_FIRST_S"): 0.5,
    (loops, "UPLOADS_EVERY_S"): 2.0,
    (loops, "UPLOADS_WHILE_UPLOADING_S"): 0.1,
}
"""The same with a real one: a life of seconds would not reach the uploads."""


@dataclass(frozen=True, slots=True)
class Life:
    """A daemon that was forked. `reports` is where it says what it passed."""

    pid: int
    reports: int


class WarmParent:
    """Forks the daemons of this process's worlds."""

    def __init__(self) -> None:
        for name in (*IMPORTED_LATE, *([ONLY_WITH_POSTGRES] if find_spec(ONLY_WITH_POSTGRES) else [])):
            importlib.import_module(name)
        platform = cast(Platform, SimpleNamespace(storage=SimpleNamespace(uid=os.getuid()), adapters=None))
        self._app = server.create_app(platform, Context(platform, 0.0))
        asyncio.run(_ask_for_nothing(self._app))
        assert threading.active_count() == 1, threading.enumerate()
        gc.collect()
        gc.freeze()

    def fork(
        self, log: Path, plan: Plan, make_scheduler: Callable[[], Scheduler] | None, mutation: Mutation | None
    ) -> Life:
        """A life that dies by `plan`; its configuration is in this process's environment."""
        reading, writing = os.pipe()

        def live() -> int:
            os.close(reading)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            reports = _Reports(writing)
            steps = Steps(plan, reports.say, _die)

            def reached(name: str) -> None:
                if name in PROGRESS:
                    reports.progressed()
                steps.reached(name)

            return self._serve(reached, make_scheduler, mutation)

        pid = fork_child(log, live)
        os.close(writing)
        return Life(pid, reading)

    def _serve(
        self, reached: Callable[[str], None], make_scheduler: Callable[[], Scheduler] | None, mutation: Mutation | None
    ) -> int:
        watch_commits(reached)
        watch_loops(reached)
        watch_files(reached)
        setattr(server, "create_app", lambda *given: WatchedReplies(self._adopt(*given), reached))  # noqa: B010
        times_s = TIMES_S if make_scheduler is not None else TIMES_WITH_SLURM_S
        for (module, name), value in times_s.items():
            assert isinstance(getattr(module, name), float), name
            setattr(module, name, value)

        def opener(settings: Settings) -> Platform:
            platform = open_platform(settings)
            name = platform.adapters.default_name()
            inner = make_scheduler() if make_scheduler is not None else platform.adapters.get(name)
            platform.adapters.use(name, watch_scheduler(inner, reached))
            if mutation is not None:
                mutation.alter_platform(platform)
            return platform

        if mutation is not None:
            mutation.alter_daemon()
        return daemon.main(["--personal"], opener=opener)

    def _adopt(self, _platform: Platform, context: Context) -> FastAPI:
        """The application that was built before, for this life."""
        self._app.state.context = context
        return self._app


class _Reports:
    """What a life tells its parent; it survives the life in the pipe."""

    def __init__(self, writing: int) -> None:
        self._writing = writing
        self._progressed = False

    def say(self, text: str) -> None:
        """One line, whole or not at all: it is shorter than PIPE_BUF."""
        os.write(self._writing, text.encode() + b"\n")

    def progressed(self) -> None:
        """A job is further than before; the first time in this life is told."""
        if not self._progressed:
            self._progressed = True
            self.say(f"progress {time.monotonic()}")


def read_reports(life: Life) -> list[str]:
    """All that a life that is over has said."""
    with os.fdopen(life.reports, "rb") as pipe:
        return pipe.read().decode().splitlines()


def _die(step: str) -> None:
    """SIGKILL; does not return: no `finally`, no exit handler, no flush."""
    if step in WITH_CHILDREN:
        kill_children(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


async def _ask_for_nothing(app: FastAPI) -> None:
    """A request that no route answers: it has them all resolved, and starts no thread."""
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": "/", "headers": [],
        "raw_path": b"/", "query_string": b"", "root_path": "", "scheme": "http", "client": None, "server": None,
    }  # fmt: skip
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    with_peer(scope, Peer(os.getpid(), os.getuid(), lambda: None))
    await app(scope, receive, send)
    assert sent[0]["status"] == HTTPStatus.NOT_FOUND, sent

"""What a daemon says of jobs before its watcher has seen what happened while none ran: nothing, for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from ffdl_batch.daemon.loops import Loops
from ffdl_batch.daemon.request_context import CATCH_UP_S, Context
from ffdl_batch.services.monitoring.watcher import Watcher
from tests.contract.daemon_rig import submission
from tests.unit.daemon.conftest import Desk
from tests.unit.daemon.test_routes import DIGEST, submit

UNKNOWN = "/api/v1/jobs/training-000000000"
READS = ("", "/events", "/wait?wait_s=0", "/logs")
ACTS: dict[str, Any] = {"cancel": None, "halt": None, "resume": {}, "drill": {"event": "halt"}}
HELD: list[tuple[str, str, Any]] = [
    ("GET", "/api/v1/jobs", None),
    *(("GET", UNKNOWN + read, None) for read in READS),
    *(("POST", f"{UNKNOWN}/{act}", body) for act, body in ACTS.items()),
]


@pytest.mark.parametrize(("method", "target", "body"), HELD)
def test_job_routes_wait_until_watcher_has_caught_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, method: str, target: str, body: Any
) -> None:
    course: list[str] = []

    def catch_up() -> None:
        course.append("caught up")
        desk.context.changes.bump()

    def is_caught_up() -> bool:
        course.append("asked")
        if len(course) == 1:
            asyncio.get_running_loop().call_soon(catch_up)
        return "caught up" in course

    def noting(read: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **words: course.append("read") or read(*arguments, **words)  # type: ignore[func-returns-value]

    desk.context.is_caught_up = is_caught_up
    desk.context.catch_up_until = time.monotonic() + 3600
    for read in ("get", "list_jobs"):
        monkeypatch.setattr(desk.platform.storage.store, read, noting(getattr(desk.platform.storage.store, read)))
    assert desk.ask(method, target, body).status in (200, 404)
    assert course[:4] == ["asked", "caught up", "asked", "read"]


def test_other_routes_do_not_wait_for_watcher(desk: Desk) -> None:
    def is_caught_up() -> bool:
        raise AssertionError("somebody waited")

    desk.context.is_caught_up = is_caught_up
    assert submit(desk)["id"]
    assert desk.ask("GET", "/api/v1/health").status == 200
    assert desk.ask("HEAD", f"/api/v1/archives/{DIGEST}").status == 200
    assert desk.ask("POST", "/api/v1/plan", {"submission": submission("p", DIGEST)}).status == 200


def test_job_routes_answer_after_catch_up_limit_if_watcher_hangs(desk: Desk) -> None:
    before = time.monotonic()
    assert before < Context(desk.platform, 0.0).catch_up_until <= time.monotonic() + CATCH_UP_S
    desk.context.is_caught_up = lambda: False
    desk.context.catch_up_until = before
    assert desk.ask("GET", "/api/v1/jobs").status == 200


def test_job_routes_answer_when_daemon_stops_during_catch_up(desk: Desk) -> None:
    def is_caught_up() -> bool:
        asyncio.get_running_loop().call_soon(desk.context.changes.close)
        return False

    desk.context.is_caught_up = is_caught_up
    desk.context.catch_up_until = time.monotonic() + 3600
    assert desk.ask("GET", "/api/v1/jobs").status == 200


def test_loops_notify_once_when_watcher_has_caught_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    loops = Loops(desk.platform, lambda: told.append("change"))
    caught_up = iter([False, True, False])
    monkeypatch.setattr(Watcher, "is_caught_up", property(lambda _self: next(caught_up)))
    seen = []
    for _ in range(3):
        loops._watch_turn()
        seen.append((loops.is_caught_up(), len(told)))
    assert seen == [(False, 0), (True, 1), (True, 1)]
    loops.stop()
    loops.join()

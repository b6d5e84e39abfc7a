"""Names the steps of a daemon from outside: its transactions, its scheduler's calls, its replies, its loops' own steps.

Everything is put in from the forked child, around the product's objects; nothing of the product knows of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ffdl_batch.attempt import file_writer
from ffdl_batch.attempt.file_writer import put
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports import capabilities
from ffdl_batch.ports.scheduler import Scheduler
from ffdl_batch.services.data.pending_uploads import Upload, WriteFinalRecord, start_upload
from ffdl_batch.store import database, repository
from ffdl_batch.store.database import Database
from ffdl_batch.store.leases import claim_deployable
from tests.crash.fuzz.steps import FILES, SHARED

Reached = Callable[[str], None]

_PURE = frozenset({"plan", "plan_array", "effective_settings", "nodes_of"})
_STORE = claim_deployable.__module__.rpartition(".")[0]
_INSIDE = frozenset({Database.__module__})
"""Modules of the store whose functions are not the transaction's own."""


def watch_commits(reached: Reached) -> None:
    """Pass `before commit …` and `after commit …` at each transaction of every database that is opened from now on."""
    connect = database.connect

    @wraps(connect)
    def watched(*arguments: Any, **keywords: Any) -> Database:
        opened = connect(*arguments, **keywords)
        dialect = opened.engine.dialect
        commit = dialect.do_commit

        def do_commit(connection: Any) -> None:
            name = name_of_transaction(sys._getframe(1))
            reached(f"before commit {name}")
            commit(connection)
            reached(f"after commit {name}")

        setattr(dialect, "do_commit", do_commit)  # noqa: B010 - a method
        return opened

    assert getattr(repository, "connect") is connect  # noqa: B009 - it exports no such name
    setattr(repository, "connect", watched)  # noqa: B010 - the same


def watch_files(reached: Reached) -> None:
    """Pass `half of …` where one of FILES is written and has not got its name."""

    def watched(temporary: str, path: str) -> None:
        if Path(path).name in FILES:
            reached(f"half of {Path(path).name}")
        put(temporary, path)

    setattr(file_writer, "put", watched)  # noqa: B010 - an imported name


def name_of_transaction(frame: FrameType | None) -> str:
    """The store's function, from the stack; of SHARED ones with `` by <the module that called the store>``."""
    function = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_STORE):
            if not function and module not in _INSIDE:
                function = frame.f_code.co_name
                if function not in SHARED:
                    return function
        elif function and not module.startswith(("sqlalchemy", "contextlib", "alembic")):
            return f"{function} by {module.rpartition('.')[2]}"
        frame = frame.f_back
    return function


def watch_scheduler(scheduler: Scheduler, reached: Reached) -> Scheduler:
    """`scheduler` with steps around its calls. It has the optional Protocols that the original has, and no others."""
    found = [Scheduler, *vars(capabilities).values()]
    protocols = [one for one in found if isinstance(one, type) and getattr(one, "_is_protocol", False)]
    named = {name for protocol in protocols for name in vars(protocol) if not name.startswith("_")}
    members: dict[str, Any] = {}
    for name in dir(scheduler):
        if name.startswith("_"):
            continue
        is_call = name in named - _PURE and callable(getattr(type(scheduler), name, None))
        members[name] = _stepping(scheduler, name, reached) if is_call else _passing_on(scheduler, name)
    watched: Scheduler = type(f"Watched{type(scheduler).__name__}", (), members)()
    return watched


def _stepping(scheduler: Scheduler, name: str, reached: Reached) -> Callable[..., Any]:
    call = getattr(scheduler, name)

    def stepping(_self: object, *arguments: Any, **keywords: Any) -> Any:
        reached(f"before call {name}")
        answer = call(*arguments, **keywords)
        reached(f"after call {name}")
        return answer

    return stepping


def _passing_on(scheduler: Scheduler, name: str) -> property:
    return property(lambda _self: getattr(scheduler, name))


class WatchedReplies:
    """An application whose replies have steps: before the first byte is sent, and when the last one is the kernel's."""

    def __init__(self, app: ASGIApp, reached: Reached) -> None:
        self._app, self._reached = app, reached

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            name = _operation(scope)
            if message["type"] == "http.response.start":
                self._reached(f"before reply {name}")
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._reached(f"after reply {name}")

        await self._app(scope, receive, sending)


def _operation(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "operation_id", None) or "none")


@dataclass(frozen=True, slots=True)
class _WatchedUpload:
    """An upload with steps where the daemon sees that it is not done."""

    upload: Upload
    reached: Reached

    def poll(self) -> int | None:
        status = self.upload.poll()
        if status is None:
            self.reached("upload works")
            self.reached("upload dies too")
        return status

    def end(self) -> None:
        self.upload.end()


def watch_loops(reached: Reached) -> None:
    """Pass `reached` to deployer, watcher and uploads of every platform that is opened from now on."""
    deployer, watcher, uploads = Platform.deployer, Platform.watcher, Platform.pending_uploads

    def start(attempt: AttemptDir, write_record: WriteFinalRecord) -> Upload | None:
        reached("upload begins")
        upload = start_upload(attempt, write_record)
        reached("upload began")
        return _WatchedUpload(upload, reached) if upload is not None else None

    for name, watched in (
        ("deployer", lambda platform: deployer(platform, lambda step: reached(f"deployer {step}"))),
        ("watcher", lambda platform: watcher(platform, lambda step: reached(f"watcher {step}"))),
        ("pending_uploads", lambda platform: uploads(platform, start)),
    ):
        setattr(Platform, name, watched)

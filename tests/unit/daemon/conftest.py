"""The application on a temporary database, asked in memory: no socket, no thread of the daemon's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope

from ffdl_batch.attempt.layout import Root
from ffdl_batch.config import load_settings
from ffdl_batch.daemon.connections import Peer, with_peer
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.daemon.request_context import Context
from ffdl_batch.daemon.server import create_app
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.job_storage import JobStorage
from tests.fakes.clock import FakeClock
from tests.fakes.scheduler import FakeScheduler
from tests.first_start import new_store

OWN_UID = 1000
_BUILT: dict[str, Any] = {}
"""The OpenAPI document once a test has requested it. It depends on the routes alone, and takes a second to build."""


@dataclass(frozen=True)
class Answer:
    """One reply."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Desk:
    """The application, and what is behind it. The daemon's user is OWN_UID whoever runs the test."""

    app: FastAPI
    context: Context
    platform: Platform
    pokes: list[str]
    answer: Answer | None = None
    """The last one."""

    def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        uid: int | None = OWN_UID,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request of a peer with this uid; None: the scope does not say who."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(self._ask(method, target, data, uid, headers or {}))

    def scope(
        self, method: str, target: str, uid: int | None = OWN_UID, headers: Mapping[str, str] | None = None
    ) -> Scope:
        """Return the ASGI scope of one request."""
        path, _, query = target.partition("?")
        given = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope: Scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
            "method": method, "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
            "root_path": "", "headers": [(b"content-type", b"application/json"), *given], "server": None,
            "client": None, "state": {},
        }  # fmt: skip
        if uid is not None:
            with_peer(scope, Peer(1, uid, lambda: None))
        return scope

    async def _ask(self, method: str, target: str, data: bytes, uid: int | None, headers: Mapping[str, str]) -> Answer:
        scope = self.scope(method, target, uid, headers)
        incoming: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            return incoming.pop(0) if incoming else await asyncio.Future()

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive, send)
        finally:
            start = next(message for message in sent if message["type"] == "http.response.start")
            fields = {name.decode(): value.decode() for name, value in start["headers"]}
            self.answer = Answer(start["status"], b"".join(m.get("body", b"") for m in sent), fields)
        return self.answer


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    environ = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / "state"), "FFDL_BACKEND": "fake"}
    settings = load_settings(cwd=tmp_path, environ=environ)
    clock, root = FakeClock(), Root(settings.jobs_dir)
    for directory in (root.path, root.doorbell, root.models, f"{root.path}/jobs"):
        Path(directory).mkdir(parents=True, exist_ok=True)
    store = new_store(tmp_path / "state" / "ffdl.sqlite3", clock)
    adapters = Adapters(settings, AdapterContext(root.path, "alice", OWN_UID), clock)
    adapters.use("fake", FakeScheduler())
    platform = Platform(settings, JobStorage(store, root, clock, "alice", OWN_UID), adapters, owner="test")
    pokes: list[str] = []
    context = Context(platform, clock.now(), log_name="/x/daemon.log", poke=lambda: pokes.append("poke"))
    app = create_app(platform, context)
    app.openapi_schema = _BUILT or None
    yield Desk(app, context, platform, pokes)
    _BUILT.update(app.openapi_schema or {})
    platform.close()

"""Creates the HTTP application, and runs uvicorn on the daemon's socket, the loops beside it, and the end of both.

The daemon ends by SIGTERM or SIGINT, when it has been idle, when its configuration files have changed and no command
is connected, or when another host has its lock. The end is always the
same: it accepts no new connections, ends waiting requests, finishes the others, stops the loops between two steps,
releases the leases, closes the database, and removes socket and lock.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from ffdl_batch import __version__
from ffdl_batch.config.daemon_location import PlaceRefused
from ffdl_batch.daemon import error_replies, prometheus
from ffdl_batch.daemon.connections import PeerProtocol
from ffdl_batch.daemon.loops import Loops
from ffdl_batch.daemon.openapi import Application
from ffdl_batch.daemon.peer_gate import PeerGate
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.daemon.prometheus import Outlets
from ffdl_batch.daemon.quiet_server import QuietServer, uvicorn_config
from ffdl_batch.daemon.replies import FFDL_API
from ffdl_batch.daemon.request_context import Context
from ffdl_batch.daemon.routes import attach, job_output, jobs, logs, pending, reports, scaler, tokens, uploads
from ffdl_batch.daemon.settings_watch import SettingsWatch
from ffdl_batch.daemon.socket_file import Listener
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.resource_exhaustion import explain_lack
from ffdl_batch.services.daemon_lock import Hold
from ffdl_batch.services.hub import hub_of
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Interval at which the keeper checks socket, lock and idleness."""
_LAST_CALL_S = 0.2


class Server(QuietServer):
    """The server, which also ends waiting requests when it stops."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See :class:`uvicorn.Server`."""
        self._context.changes.close()
        await super().shutdown(sockets)

    def count_connections(self) -> int:
        """Return the number of open connections of admitted users. Connections of the hub, which stay open, count only
        while they wait for an answer."""
        connections = [c for c in self.server_state.connections if isinstance(c, PeerProtocol)]
        own, hub = self._context.admitted_uids, self._context.hub
        of_hub = sum(1 for c in connections if hub is not None and c.peer.uid == hub.uid and c.is_answering)
        return of_hub + sum(1 for c in connections if c.peer.uid in own)


@dataclass(slots=True)
class Daemon:
    """One run of the daemon, from an open platform and a held lock to the end."""

    platform: Platform
    hold: Hold
    listener: Listener
    log_name: str
    watch: SettingsWatch | None = None
    """The configuration files, if this process can restart itself."""

    def run(self) -> None:
        """Serve until the end. Raises PlaceRefused if the socket cannot be created."""
        with asyncio.Runner() as runner:  # its event loop must exist before the coroutine
            runner.run(self._serve())

    async def _serve(self) -> None:
        context = Context(self.platform, self.hold.record.started_at, self.log_name)
        context.admits_root = self.listener.is_own
        context.hub = None if self.listener.is_own else hub_of(os.environ)
        loops = Loops(self.platform, context.changes.bump, lambda: context.changes.waiting > 0)
        context.poke, context.is_caught_up = loops.poke, loops.is_caught_up
        if self.watch is not None:
            watch = self.watch
            context.settings_problem = lambda: watch.problem
        context.changes.attach(asyncio.get_running_loop())
        asyncio.get_running_loop().set_exception_handler(PeerProtocol.limits.on_exception)
        server = Server(uvicorn_config(create_app(self.platform, context)), context)
        _settle()
        _on_signals(server, self.watch)
        listener = self.listener
        listening = listener.open()
        if listener.is_own:  # else the next daemon's socket has the same path
            self.hold.announce(listener.path)
        loops.start()
        outlets = Outlets(self.platform.settings, context.figures)
        outlets.start()
        keeper = asyncio.create_task(Keeper(self, context, server, loops.is_busy).keep())
        log.info("serving at %s, state in %s", listener.path, self.platform.settings.state_dir)
        try:
            await server.serve(sockets=[listening])
        finally:
            keeper.cancel()
            await asyncio.to_thread(outlets.stop)
            loops.stop()
            await asyncio.to_thread(loops.join)
            listener.remove()
            log.info("stopped")


class Keeper:
    """Checks regularly whether the socket is in place, the lock is ours, and the daemon is in use."""

    def __init__(self, daemon: Daemon, context: Context, server: Server, is_busy: Callable[[], bool]) -> None:
        self._platform, self._hold, self._is_busy = daemon.platform, daemon.hold, is_busy
        self._watch = daemon.watch
        self._context, self._server, self._listener = context, server, daemon.listener
        self._clock = daemon.platform.storage.clock
        self._idle_s = daemon.platform.settings.idle_exit_s
        self._active_at = self._clock.monotonic()
        self._requests = 0
        self._misplaced = ""

    async def keep(self) -> None:
        """Serve until the server has to end."""
        pause = min(LOOK_S, self._idle_s / 4)
        while not self._server.should_exit:
            await asyncio.sleep(pause)
            try:
                await self._look(is_ours=await asyncio.to_thread(self._check_files))
            except (OSError, PlaceRefused, StoreError) as error:
                log.warning("the keeper's check failed: %s", error)
            except (RuntimeError, MemoryError) as error:
                if not (lack := explain_lack(error)):
                    raise
                log.warning("the keeper could not check: %s", lack)

    def _check_files(self) -> bool:
        """Check the files of the database; return whether the lock of the state directory is still ours."""
        self._check_database()
        return self._hold.is_ours()

    def _check_database(self) -> None:
        """Log it once if a file of the database is not in its place; requests find out by themselves."""
        try:
            self._platform.storage.store.check_files()
        except (StoreError, OSError) as error:
            if str(error) != self._misplaced:
                log.error("%s", error)
            self._misplaced = str(error)
            return
        self._misplaced = ""

    async def _look(self, *, is_ours: bool) -> None:
        if not is_ours:
            log.error("the lock of this state directory is another daemon's; this daemon stops")
            self._server.end()
            return
        if not self._listener.is_in_place():
            if not self._listener.is_own:
                log.error("the spawner has given the socket %s to another daemon; this one stops", self._listener.path)
                self._server.end()
                return
            log.warning("the socket %s was removed; creating it again", self._listener.path)
            await self._listen_again()
        if self._is_quiet() and await self._is_unused():
            log.info("idle for %g s with no live job", self._idle_s)
            self._server.end()
        elif self._watch is not None and await self._may_restart(self._watch):
            log.info("restarting with changed settings")
            self._watch.restarts = True
            self._server.end()

    async def _may_restart(self, watch: SettingsWatch) -> bool:
        """Return whether settings have changed, and, after the socket is removed, no request and no upload runs."""
        if not await asyncio.to_thread(watch.look, self._platform.adapters) or self._misplaced:
            return False
        if self._server.count_connections() or await asyncio.to_thread(self._is_busy):
            return False
        if not await asyncio.to_thread(watch.is_startable):
            return False
        self._listener.remove()
        await asyncio.sleep(_LAST_CALL_S)
        if not self._server.count_connections():
            return True
        await self._listen_again()
        return False

    async def _listen_again(self) -> None:
        await self._server.listen(self._listener.open())
        self._hold.announce(self._listener.path)

    def _is_quiet(self) -> bool:
        """Return whether there was no open connection and no request for the idle time. Never while this process may be
        the last one with the database."""
        now = self._clock.monotonic()
        if self._misplaced:
            self._active_at = now
        if self._server.count_connections() or self._context.requests != self._requests:
            self._requests = self._context.requests
            self._active_at = now
        return now - self._active_at >= self._idle_s

    async def _is_unused(self) -> bool:
        """Return whether there is no live job, no pending upload, and, after the socket is removed, no client that is
        just connecting."""
        if await asyncio.to_thread(self._platform.storage.store.count_live) or await asyncio.to_thread(self._is_busy):
            self._active_at = self._clock.monotonic()  # check again after the idle time
            return False
        if not self._is_quiet():
            return False
        self._listener.remove()
        await asyncio.sleep(_LAST_CALL_S)
        if self._is_quiet():
            return True
        await self._listen_again()
        return False


def _settle() -> None:
    """Enable garbage collection, but exclude the existing objects, which stay until the end. Collecting them repeatedly
    would take a quarter of the daemon's start, and once more at the end."""
    gc.freeze()
    gc.enable()


def _on_signals(server: Server, watch: SettingsWatch | None) -> None:
    def end(number: signal.Signals) -> None:
        log.info("%s: stopping", number.name)
        if watch is not None:
            watch.restarts = False
        server.end()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)


_DESCRIPTION = """HTTP/1.1 over a Unix socket. The caller is the peer of the socket as the kernel reports it; no header
and no field of a request can change it. Every JSON reply has `schema` at its top; times are seconds since the epoch,
UTC. Errors are `ErrorReply`; `problem.exit_code` is the exit status for a command."""

ROUTES = (uploads, reports, jobs, attach, job_output, logs, pending, scaler, tokens)
"""Modules with the routes of the API."""


def create_app(platform: Platform, context: Context | None = None) -> FastAPI:
    """Return the application over `platform`. Opens and starts nothing."""
    context = context or Context(platform, platform.storage.clock.now())
    app = Application(
        [module.router for module in (*ROUTES, prometheus)],
        {FFDL_API: "ffdl_batch.daemon.ffdl_api.routes"},
        title="ffdl-submitd",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.context = context
    error_replies.install(app)
    app.add_middleware(
        error_replies.BodyLimits, own={uploads.ARCHIVES: uploads.BODY_LIMIT, FFDL_API: uploads.BODY_LIMIT}
    )
    # Added last, so it runs first: it refuses callers before anything else.
    app.add_middleware(PeerGate)
    return app

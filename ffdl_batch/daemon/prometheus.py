"""Serves the daemon's metrics to Prometheus: by the socket, a file for node_exporter's textfile collector, and a port.

File and port are off unless the settings name them. Neither counts as use of the daemon, which ends when it is idle.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.reader import DamagedFile, read_whole
from ffdl_batch.config import Settings
from ffdl_batch.daemon.loops import StepThread
from ffdl_batch.daemon.request_context import Here, in_thread
from ffdl_batch.daemon.routes.parameters import answers
from ffdl_batch.domain.metrics.prometheus_text import CONTENT_TYPE
from ffdl_batch.services.reports.prometheus_metrics import Figures
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

FILE_EVERY_S = 30.0
_LARGEST_FILE = 16 * 1024 * 1024
CONNECTION_S = 5.0
"""Maximum time of a connection to the port. Clients are served one after the other."""
ADDRESS = "127.0.0.1"

router = APIRouter()


@router.get(
    "/metrics",
    operation_id="prometheus",
    response_class=Response,
    responses=answers() | {200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}}},
)
async def read_figures(here: Here) -> Response:
    """Return the daemon's metrics in Prometheus' text format."""
    text = await in_thread(here.limits.quick, here.figures.text)
    return Response(text, media_type=None, headers={"Content-Type": CONTENT_TYPE})


class Outlets:
    """The metrics file and the metrics port of one daemon."""

    def __init__(self, settings: Settings, figures: Figures) -> None:
        self._figures = figures
        self._file = Path(settings.metrics_textfile) if settings.metrics_textfile else None
        self._mark = f"# written by ffdl-submitd, state_dir {settings.state_dir!r}\n"
        self._port = settings.metrics_port
        self._writer = StepThread("figures", self._write, place=settings.metrics_textfile)
        self._server: HTTPServer | None = None
        self._logged = ""

    def start(self) -> None:
        """Start both; if the port is taken, log it and continue without."""
        if self._file is not None:
            self._writer.start()
        if self._port:
            try:
                self._server = _listen(self._port, self._figures)
            except OSError as error:
                log.warning("metrics_port %d cannot be opened, so no metrics are served there: %s", self._port, error)
                return
            threading.Thread(target=self._server.serve_forever, name="metrics port", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens on; 0 if it does not."""
        return int(self._server.server_port) if self._server is not None else 0

    def stop(self) -> None:
        """Stop, and remove the file if this daemon wrote it, because a remaining file looks like a running daemon."""
        self._writer.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._file is not None:
            self._writer.join(CONNECTION_S)
            with contextlib.suppress(OSError):
                self._refuse_other_file(self._file)
                self._file.unlink()

    def _refuse_other_file(self, path: Path) -> None:
        """Raise OSError if a file exists that no daemon of this state directory wrote, because the file may be of
        value."""
        try:
            is_own = read_whole(str(path), _LARGEST_FILE).endswith(self._mark.encode())
        except FileNotFoundError:
            return
        except DamagedFile:
            is_own = False
        if not is_own:
            raise FileExistsError(f"{path} was not written by this daemon; remove it or name another file")

    def _write(self) -> float:
        """Write the file by rename, as the collector requires, and readable for it. Raises StoreError."""
        assert self._file is not None
        text = self._figures.text()
        said = ""
        try:
            self._refuse_other_file(self._file)
            write_text(self._file, text + self._mark, 0o644, durable=False)  # a comment of Prometheus' text format
        except OSError as error:
            said = f"{self._file}: {error.strerror}" if error.strerror else str(error)
            if said != self._logged:
                log.warning("metrics_textfile cannot be written, and is tried again each %g s: %s", FILE_EVERY_S, said)
        self._logged = said
        return FILE_EVERY_S


def _disconnect(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _listen(port: int, figures: Figures) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        """Serves GET /metrics and nothing else."""

        timeout = CONNECTION_S
        server_version, sys_version = "ffdl-submitd", ""

        def do_GET(self) -> None:
            """Reply with the metrics."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                body = figures.text().encode("utf-8")
            except (StoreError, OSError) as error:
                log.warning("the metrics cannot be computed: %s", error)
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing for a scrape."""

    class LocalServer(HTTPServer):
        """Serves one client after the other. Every user of the host can connect, so each has a time limit."""

        def process_request(self, request: Any, client_address: Any) -> None:
            """Serve one client, and disconnect it at the limit even if it keeps sending."""
            limit = threading.Timer(CONNECTION_S, _disconnect, [request])
            limit.daemon = True
            limit.start()
            try:
                super().process_request(request, client_address)
            finally:
                limit.cancel()

        def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
            """See :class:`socketserver.BaseServer`."""
            log.debug("a scrape failed", exc_info=True)

    return LocalServer((ADDRESS, port), Handler)

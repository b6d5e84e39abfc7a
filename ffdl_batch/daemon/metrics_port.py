"""Serves the daemon's metrics to Prometheus on a port of this host: GET /metrics and nothing else."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from ffdl_batch.domain.metrics.prometheus_text import CONTENT_TYPE
from ffdl_batch.services.reports.prometheus_metrics import Figures
from ffdl_batch.store import StoreError

log = logging.getLogger(__name__)

CONNECTION_S = 5.0
"""Maximum time of a connection to the port. Clients are served one after the other."""
ADDRESS = "127.0.0.1"


def _disconnect(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def listen(port: int, figures: Figures) -> HTTPServer:
    """Return a server that listens on `port`. Raises OSError."""

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

"""Serves the daemon's metrics to Prometheus: by the socket, a file for node_exporter's textfile collector, and a port.

File and port are off unless the settings name them. Neither counts as use of the daemon, which ends when it is idle.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.reader import DamagedFile, read_whole
from ffdl_batch.config import Settings
from ffdl_batch.daemon.loops import StepThread
from ffdl_batch.daemon.openapi import Routes
from ffdl_batch.daemon.request_context import Here, in_thread
from ffdl_batch.daemon.routes.parameters import answers
from ffdl_batch.domain.metrics.prometheus_text import CONTENT_TYPE
from ffdl_batch.services.reports.prometheus_metrics import Figures

if TYPE_CHECKING:
    from http.server import HTTPServer

log = logging.getLogger(__name__)

FILE_EVERY_S = 30.0
_LARGEST_FILE = 16 * 1024 * 1024
WRITER_END_S = 5.0
"""How long the daemon waits at its end for the writer of the file."""

router = Routes()


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
            from ffdl_batch.daemon.metrics_port import listen  # http.server is imported only for this port

            try:
                self._server = listen(self._port, self._figures)
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
            self._writer.join(WRITER_END_S)
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

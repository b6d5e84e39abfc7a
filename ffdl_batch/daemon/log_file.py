"""Configures the daemon's log: its own rotating file, or standard error if it runs in the foreground.

One line per event, with the time in UTC, as plain text or JSON. Of user data, it contains only job ids and names.
A full disk causes no failure; the first line that can be written again reports how many are missing.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from pathlib import Path
from typing import Any

from ffdl_batch.domain.terminal_text import printable

MAX_BYTES = 5_000_000
KEPT = 3
_MISSING = "%d lines before this one could not be written at once, and may be missing (%s)"


class _Unfailing(logging.Handler):
    """Count records that could not be written, instead of a traceback on standard error for each."""

    missing = 0
    why = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        missing = self.missing
        super().emit(record)
        if missing and self.missing == missing:
            self.missing = 0
            fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
            super().emit(logging.makeLogRecord(fields | {"msg": _MISSING, "args": (missing, self.why)}))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """See :class:`logging.Handler`. Called where the exception is handled."""
        del record
        self.missing += 1
        self.why = str(sys.exc_info()[1])


class _File(_Unfailing, logging.handlers.RotatingFileHandler):
    """The daemon's own log."""


class _Stream(_Unfailing, logging.StreamHandler):  # type: ignore[type-arg]  # not subscriptable at run time
    """Standard error."""


class _Lines(logging.Formatter):
    """Escape control characters, so that a record cannot control the reader's terminal or look like two records."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record), one_line=True)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return printable(super().formatException(ei))


class _Objects(logging.Formatter):
    """Write a JSON object in ASCII for each record: `time`, `level`, `logger`, `message`, and `exception` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        time_text = f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03}Z"
        found = {"time": time_text, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def log_to(path: Path | None, *, log_json: bool = False) -> None:
    """Send everything from INFO up to `path`, or to standard error if it is None. Raises OSError."""
    handler: logging.Handler
    if path is None:
        handler = _Stream(sys.stderr)
    else:
        handler = _File(path, maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8")
    kind = _Objects if log_json else _Lines
    formatter = kind("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # uvicorn names a request's failure with its traceback at ERROR; what it says below that is about itself. httpx2
    # says each request to an API server at INFO.
    for name in ("uvicorn", "uvicorn.error", "alembic", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # asyncio warns at each piece that is sent after the peer has disconnected.
    logging.getLogger("asyncio").setLevel(logging.ERROR)

"""Where the daemon's words go: its own rotating file, or standard error when it runs in the foreground.

One line per event, with the time in UTC. Nothing that a user sent is logged but ids and names of jobs.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from pathlib import Path

MAX_BYTES = 5_000_000
KEPT = 3


def log_to(path: Path | None) -> None:
    """Send everything from INFO up to `path`, or to standard error where it is None. Raises OSError."""
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=KEPT, encoding="utf-8")
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # uvicorn names a request's failure with its traceback at ERROR; what it says below that is about itself.
    for name in ("uvicorn", "uvicorn.error", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)

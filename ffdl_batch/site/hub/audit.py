"""Write who did what, in which role, and with which result. Neither queries, headers nor bodies are written."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass

log = logging.getLogger(__name__)

LONGEST_PATH = 300


@dataclass(slots=True)
class Entry:
    """What the audit records about a request."""

    request: str
    """The request's id, which is also in the answer and in the daemon's log."""
    origin: str
    """The user or address at the other end of the connection."""
    what: str
    """Method and path."""
    caller: int | None = None
    """The uid of the identified caller."""
    user: int | None = None
    """The uid of the user whose daemon is asked."""
    role: str = ""
    """The caller's role for that daemon."""
    status: int = 0
    """The status of the answer."""
    values: str = ""
    """The JSON of an operator's change, such as the amount of a quota."""
    seconds: float | None = None
    """How long a stream was open; only in the line that is written at its end."""


class Audit:
    """One JSON object per line, to standard error, which systemd passes to the journal, and to a file."""

    def __init__(self, file: str = "") -> None:
        self._file = Path(file) if file else None

    def write(self, entry: Entry) -> None:
        """Append one line. The file is opened each time, so that it may be rotated."""
        fields = {
            "audit": round(time.time(), 3), "request": entry.request, "caller": entry.caller, "from": entry.origin,
            "user": entry.user, "role": entry.role, "what": entry.what[:LONGEST_PATH], "status": entry.status,
        }  # fmt: skip
        if entry.values:
            fields["values"] = entry.values[:LONGEST_PATH]
        if entry.seconds is not None:
            fields["seconds"] = entry.seconds
        line = json.dumps(fields, separators=(",", ":")) + "\n"
        sys.stderr.write(line)
        sys.stderr.flush()
        if self._file is None:
            return
        try:
            with self._file.open("a", encoding="ascii") as file:
                file.write(line)
        except OSError as error:
            log.error("the audit file %s cannot be written; standard error has its lines: %s", self._file, error)

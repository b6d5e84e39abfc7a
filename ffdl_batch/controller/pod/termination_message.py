"""What is left of a pod when its logs are gone: the message with which its controller's container ends."""

from __future__ import annotations

import json
import os
import sys

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_object, find_text
from ffdl_batch.domain.outcome.controller_events import node_source

PATH = "/dev/termination-log"
MOST_BYTES = 4096
"""Of one container's message (kubernetes.io, "Determine the Reason for Pod Failure")."""
_SHORT = 500


def termination_message(attempt: AttemptDir, index: int) -> str:
    """The final record without the log's tail, of node 0; else the last events of the node, as many as there is room
    for."""
    final = find_object(attempt.final, below=attempt.path) if index == 0 else {}
    if final:
        final.pop("log_tail", None)
        text = _plain(final)
        if len(text) > MOST_BYTES:
            text = _plain({**final, "message": str(final.get("message", ""))[:_SHORT], "checkpoint": {}})
        if len(text) <= MOST_BYTES:
            return text
    kept = ""
    events = find_text(attempt.event_file(node_source(index)), MAX_EVENT_BYTES, below=attempt.path)
    for line in reversed(events.splitlines(keepends=True)):
        if len(kept.encode()) + len(line.encode()) > MOST_BYTES:
            break
        kept = line + kept
    return kept


def leave(path: str, text: str) -> None:
    """Write it; without a place for it there is none."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text[:MOST_BYTES])
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {path}: {error}\n")


def error_message(status: int, message: str) -> str:
    """Of a controller that could not begin."""
    return _plain({"error": message[: 2 * _SHORT], "exit_status": status, "pod": os.uname().nodename})


def _plain(body: object) -> str:
    return json.dumps(body, ensure_ascii=True, separators=(",", ":"))

"""Defines a finding: one sign of a sick node. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

TEXT_MOST = 400
DEVICE_MOST = 80


class Finding(NamedTuple):
    """One sign of a sick node."""

    at: float
    """When it happened, in seconds since the epoch. If the source does not have the time, when it was found."""
    kind: str
    """A kind of docs/node-health.md."""
    device: str
    """The affected device; "" for the node."""
    text: str
    badly: bool = False
    """Whether it makes the node unfit for jobs."""
    standing: str = ""
    """The name of a lasting state, which is reported once while it lasts; "" for an event."""

    def line(self, boot_id: str) -> str:
        """Return its line in the file of incidents, with the newline."""
        return line_of(self.record(boot_id))

    def record(self, boot_id: str) -> dict[str, Any]:
        """Return its record. The text is always one line."""
        text = " ".join(self.text.split())
        return {
            "at": round(self.at, 3),
            "kind": self.kind,
            "device": self.device[:DEVICE_MOST],
            "text": "".join(letter for letter in text if letter.isprintable())[:TEXT_MOST],
            "boot_id": boot_id,
        }


def line_of(record: dict[str, Any]) -> str:
    """Return a record as a line, with the newline."""
    return json.dumps(record, separators=(",", ":")) + "\n"

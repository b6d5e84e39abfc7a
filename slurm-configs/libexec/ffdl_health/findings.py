"""One sign of a sick node. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

TEXT_MOST = 400
DEVICE_MOST = 80


class Finding(NamedTuple):
    """`at` is when it happened, in seconds since the epoch, as far as the source knows. `kind` is a word of
    docs/node-health.md; `device` is what it befell ("" = the node). `badly`: with it the node is not fit for jobs.
    `standing` names a state that lasts: while it does it is found once ("" = an event)."""

    at: float
    kind: str
    device: str
    text: str
    badly: bool = False
    standing: str = ""

    def line(self, boot_id: str) -> str:
        """As it stands in the file of incidents, with the line's end."""
        return line_of(self.record(boot_id))

    def record(self, boot_id: str) -> dict[str, Any]:
        """Return its record. The text is one line, whatever was logged."""
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

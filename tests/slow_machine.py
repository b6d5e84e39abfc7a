"""What commands print only because the machine is busy."""

from __future__ import annotations

import re

_WAITS = re.compile(r"^.* has not answered for 10 s \(it may be waiting for its scheduler\); .*\n", re.MULTILINE)


def without_waits(text: str) -> str:
    """Return the output of a command without the lines about a daemon that is slow to answer."""
    return _WAITS.sub("", text)

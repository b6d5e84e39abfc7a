"""What a command on a login node and the helper beside a running learner say to each other.

Frames are lines, ``<kind> <base64>``: job steps carry lines whole and unaltered, other bytes with pauses. The helper's
standard input ends when the command has ended, however it did; the helper then ends what it started. Read by Python
3.9: the helper is part of the controller.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import List, Tuple

# From the command.
BEGIN, INPUT, INPUT_END, SIGNAL, WINDOW, PING, LOOK = "B", "I", "E", "S", "W", "P", "L"
# From the helper.
READY, OUTPUT, ERRORS, TAKEN, EXIT, REFUSED, TABLE = "R", "O", "X", "A", "Z", "M", "T"

# What may be wanted.
RUN, TOP, STACK = "run", "top", "stack"

AGAIN = 75
"""Exit status of a helper that refused only for now (sysexits.h, EX_TEMPFAIL)."""
PING_S = 5.0
"""How often a command says that it is there."""
SILENCE_S = 60.0
"""How long a helper that hears nothing waits before it takes the command for dead: its host may be gone."""
CREDIT_BYTES = 1 << 18
"""How much input may be under way that the learner's process has not taken."""
PIECE_BYTES = 3 << 10
LONGEST_BYTES = 1 << 21
"""Of one frame."""


@dataclass(frozen=True)
class AttachPlan:
    """How the helper is started for the learners of one node, by a process of the job's owner.

    `host` is the machine on which that process has to run ("" = any that has the program `argv[0]`). Its environment
    is the caller's without variables that begin with one of `unset`, but for those in `keep`.
    """

    argv: Tuple[str, ...]
    learners: Tuple[int, ...]
    node: str = ""
    host: str = ""
    unset: Tuple[str, ...] = ()
    keep: Tuple[str, ...] = ()


class FrameError(ValueError):
    """What came is no frame; the message shows it."""


def encode_frame(kind: str, payload: bytes = b"") -> bytes:
    """One frame."""
    return kind.encode("ascii") + b" " + base64.b64encode(payload) + b"\n"


class FrameReader:
    """Cuts what comes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> List[Tuple[str, bytes]]:
        """The frames that are whole by now. Raises FrameError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_BYTES:
            raise FrameError(f"a line of more than {LONGEST_BYTES} bytes")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Tuple[str, bytes]:
    try:
        kind, _, text = line.decode("ascii").partition(" ")
        if len(kind) == 1:
            return kind, base64.b64decode(text, validate=True)
    except (UnicodeDecodeError, binascii.Error):
        pass
    raise FrameError(f"{line[:200]!r} is no frame")

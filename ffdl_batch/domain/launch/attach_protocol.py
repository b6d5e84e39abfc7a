"""The protocol between a command on a login node and the helper beside a running learner.

A frame is a line, ``<kind> <base64>``, because job steps transfer lines complete and unchanged, and other bytes with
delays. The helper's standard input ends when the command has ended for any reason; the helper then ends what it
started. Runs on Python 3.9: the helper is part of the controller.
"""

from __future__ import annotations

import base64
import binascii
from typing import Dict, List, Mapping, Optional, Tuple

from ffdl_batch.host.fast_dataclass import dataclass

# From the command.
BEGIN, INPUT, INPUT_END, SIGNAL, WINDOW, PING, LOOK = "B", "I", "E", "S", "W", "P", "L"
# From the helper.
READY, OUTPUT, ERRORS, TAKEN, EXIT, REFUSED, TABLE = "R", "O", "X", "A", "Z", "M", "T"
# From the daemon, if the helper is its child process: the last frame.
HELPER_END = "H"
UPGRADE = "ffdl-attach"
"""The name of this protocol in the header Upgrade, if the daemon starts the helper and passes the frames on."""

# What may be wanted.
RUN, TOP, STACK = "run", "top", "stack"

HOLD = "FFDL_HOLDS_JOB"
"""A variable of a RUN request: the learner of an interactive job (:data:`INTERACTIVE_COMMAND`) ends with this command,
and with its status."""
_HELD = 87
HOLD_PATH = f"/proc/$$/fd/{_HELD}"
"""The pipe of that learner, for shells in it: ``$$`` is the learner's shell in all shells that its agent forked."""
ARRIVAL_S = 120
"""Maximum time from the start of an interactive job's learner to the start of its command."""
INTERACTIVE_COMMAND = f"""\
exec {_HELD}<> <(:)
if IFS= read -r -t {ARRIVAL_S} -u {_HELD} _; then
    exec {_HELD}</proc/self/fd/{_HELD}
    IFS= read -r -u {_HELD} status
    (exit "${{status:-129}}")
else
    echo 'ffdl: no terminal was connected within {ARRIVAL_S} s' >&2
    (exit 75)
fi
"""
"""The command of an interactive job. It waits for the first line from the shell of a session, then for the status. If
the pipe has no writer left, the session has ended."""
AGAIN = 75
"""Exit status of a helper that refused only for the moment (sysexits.h, EX_TEMPFAIL)."""
PING_S = 5.0
"""Interval at which a command shows that it is alive."""
SILENCE_S = 60.0
"""A helper that receives nothing for so long assumes that the command is dead: its host may be down."""
CREDIT_BYTES = 1 << 18
"""How much input may be in transit that the learner's process has not read."""
PIECE_BYTES = 3 << 10
LONGEST_BYTES = 1 << 21
"""Maximum of one frame."""


@dataclass(frozen=True)
class AttachPlan:
    """How a process of the job's owner starts the helper for the learners of one node."""

    argv: Tuple[str, ...]
    learners: Tuple[int, ...]
    node: str = ""
    host: str = ""
    """The machine on which that process has to run; "" = any that has the program `argv[0]`."""
    unset: Tuple[str, ...] = ()
    """Variables with these prefixes are removed from the caller's environment, except those in `keep`."""
    keep: Tuple[str, ...] = ()

    def environment(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """Return the variables of a process that inherits `environ`."""
        return {k: v for k, v in environ.items() if k in self.keep or not k.startswith(self.unset)}

    def obstacle(self, here: str, program: Optional[str]) -> Optional[Tuple[str, str]]:
        """Return why the program cannot be started on the machine `here`, and what to do; None if it can. `program` is
        the path of `argv[0]` there; None if it does not exist."""
        if self.host and self.host != here:
            return f"the learners are processes of {self.host}, and this is {here}", f"use the daemon of {self.host}"
        if program is None:
            where = self.node or "the node"
            message = f"there is no {self.argv[0]} on {here} to run a command on {where}"
            return message, "run it on a host that has the scheduler's commands"
        return None


class FrameError(ValueError):
    """A line that is no frame; the message quotes it."""


def encode_frame(kind: str, payload: bytes = b"") -> bytes:
    """Return the line of one frame."""
    return kind.encode("ascii") + b" " + base64.b64encode(payload) + b"\n"


class FrameReader:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> List[Tuple[str, bytes]]:
        """Return the frames that are complete by now. Raises FrameError."""
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
    raise FrameError(f"{line[:200]!r} is not a frame")

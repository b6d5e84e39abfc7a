"""Builds the line that runs a command on a host, and finds where the output of the command begins.

Login shells print banners and quotas. So a frame line precedes the command on standard output and on standard error. It
has the process id of the command, to which signals can be sent, or reports that the host has no such program.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Sequence

MAX_BANNER_BYTES = 1 << 18
_LOGIN = (
    'case "${SHELL##*/}" in bash|dash|fish|ksh*|mksh|sh|zsh) exec "$SHELL" -l -c "$0";; '
    'csh|tcsh) exec "$SHELL" -c "$0";; *) exec /bin/sh -l -c "$0";; esac'
)
"""A login shell sets a site's modules and paths. Without them, a daemon that is started there might not find Slurm.
tcsh accepts -l only without other arguments, and reads ~/.tcshrc in any case."""
_FRAME = (
    'm=$1; shift; if command -v "$1" >/dev/null 2>&1; then p=$$; else p=-; fi; '
    'printf "\\n%s %s\\n" "$m" "$p"; printf "\\n%s %s\\n" "$m" "$p" >&2; '
    'if [ "$p" = - ]; then exit 127; fi; exec "$@"'
)
_NO_PROGRAM = b"-"


def at_login(words: Sequence[str]) -> str:
    """Return a line for any shell of the host that runs `words` as after a login."""
    return f"exec /bin/sh -c {shlex.quote(_LOGIN)} {shlex.quote('exec ' + shlex.join(words))}"


def framed(words: Sequence[str], mark: str) -> str:
    """Return the line that prints the frame, whose first word is `mark`, and runs `words` as after a login."""
    return at_login(["/bin/sh", "-c", _FRAME, "sh", mark, *words])


def read_frame(source: socket.socket, mark: str, deadline: float) -> int:
    """Read up to the end of the frame and return the process id; 0 if the host has no such program.

    Raises TimeoutError, and FrameMissing with what was printed if the stream ends without a frame.
    """
    start, banner = f"\n{mark} ".encode(), b""
    while more := read_through(source, b"\n", deadline):
        banner += more
        before, found, text = banner.partition(start)
        if found and text.endswith(b"\n"):
            return 0 if text.strip() == _NO_PROGRAM else int(text)
        if len(before) > MAX_BANNER_BYTES:
            raise FrameMissing(banner, is_over=False)
    raise FrameMissing(banner, is_over=True)


def read_through(source: socket.socket, end: bytes, deadline: float) -> bytes:
    """Read the available data up to the first `end`; b"" at the end of the stream. Raises TimeoutError.

    Data after `end` remain in the socket for the next reader.
    """
    source.settimeout(max(0.1, deadline - time.monotonic()))
    try:
        seen = source.recv(1 << 16, socket.MSG_PEEK)
        at = seen.find(end)
        return source.recv(len(seen) if at < 0 else at + len(end))
    finally:
        source.settimeout(None)


class FrameMissing(Exception):
    """The shell of the host did not start the command. `is_over`: its output has ended."""

    def __init__(self, printed: bytes, *, is_over: bool) -> None:
        super().__init__()
        self.is_over = is_over
        self.lines = [line.strip() for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]

"""Asks a person for passphrases, passwords and second factors, on the terminal, not on standard streams."""

from __future__ import annotations

import atexit
import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ffdl_batch.domain.terminal_text import printable

_MOST = 4096


class Terminal:
    """The controlling terminal of this process."""

    def __init__(self, path: str = "/dev/tty") -> None:
        """Open the terminal. Raises OSError if there is none."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._descriptor)

    def ask(self, prompt: str, *, shown: bool = False) -> str:
        """Return one line that a person typed; `shown`: what is typed may be seen. The terminal is restored afterwards,
        also after Ctrl-C. Raises EOFError if the terminal is closed."""
        with self._quiet(shown=shown):
            self._write(printable(prompt))
            data = bytearray()
            while not data.endswith(b"\n"):
                more = os.read(self._descriptor, _MOST)
                if not more:
                    raise EOFError("the terminal is closed")
                data += more
            if not shown:
                self._write("\n")
            return data.decode("utf-8", "surrogateescape").rstrip("\r\n")

    def show(self, text: str) -> None:
        """Print a line that needs no answer."""
        self._write(printable(text.rstrip()) + "\n")

    def _write(self, text: str) -> None:
        os.write(self._descriptor, text.encode("utf-8", "replace"))

    @contextmanager
    def _quiet(self, *, shown: bool) -> Iterator[None]:
        before = termios.tcgetattr(self._descriptor)
        now = [*before[:3], before[3] | termios.ECHO if shown else before[3] & ~termios.ECHO, *before[4:]]

        def restore() -> None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

        atexit.register(restore)  # a thread that waits here is not ended by Ctrl-C, which the main thread gets
        termios.tcsetattr(self._descriptor, termios.TCSAFLUSH, now)
        try:
            yield
        finally:
            restore()
            atexit.unregister(restore)


def find_terminal() -> Terminal | None:
    """Return the terminal; None without one (cron, a service)."""
    try:
        return Terminal()
    except OSError:
        return None

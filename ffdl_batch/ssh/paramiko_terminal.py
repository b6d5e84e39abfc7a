"""Connects the terminal of this process to a channel of paramiko."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

_BLOCK = 1 << 15
_STDIN, _STDOUT = 0, 1


def attach_terminal(channel: paramiko.Channel, line: str) -> None:
    """Run the line in a terminal on the host until it ends. Raises the errors of the channel."""

    def resize(*_: object) -> None:
        channel.resize_pty(*os.get_terminal_size(_STDIN))

    channel.get_pty(os.environ.get("TERM", "dumb"), *os.get_terminal_size(_STDIN))
    channel.exec_command(line)
    before = signal.signal(signal.SIGWINCH, resize)
    try:
        with _raw():
            _copy(channel)
    finally:
        signal.signal(signal.SIGWINCH, before)


def _copy(channel: paramiko.Channel) -> None:
    sources: list[int] = [_STDIN, channel.fileno()]
    while True:
        ready = select.select(sources, [], [])[0]
        if channel.fileno() in ready:
            data = channel.recv(_BLOCK)
            if not data:
                return
            _write(data)
        if _STDIN in ready:
            typed = os.read(_STDIN, _BLOCK)
            if typed:
                channel.sendall(typed)
            else:
                sources.remove(_STDIN)
                channel.shutdown_write()


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDOUT, data) :]


@contextmanager
def _raw() -> Iterator[None]:
    """Put the terminal into raw mode, and restore it afterwards."""
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)

"""Connects the terminal of this process to a channel of paramiko."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

from ffdl_batch.host.descriptors import write_all
from ffdl_batch.host.terminal import raw_mode

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
        with raw_mode(_STDIN):
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
            write_all(_STDOUT, data)
        if _STDIN in ready:
            typed = os.read(_STDIN, _BLOCK)
            if typed:
                channel.sendall(typed)
            else:
                sources.remove(_STDIN)
                channel.shutdown_write()

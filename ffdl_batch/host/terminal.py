"""Change the mode of a terminal, and read its size."""

from __future__ import annotations

import os
import sys
import termios
import tty
from contextlib import contextmanager
from typing import Iterator, Tuple


@contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Put the terminal into raw mode, and restore it afterwards. Input that was typed before is kept."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def window_size() -> Tuple[int, int]:
    """Return the rows and columns of the terminal of standard input."""
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return rows, columns

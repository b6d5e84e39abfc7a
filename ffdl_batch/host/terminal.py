"""Change the mode of a terminal."""

from __future__ import annotations

import termios
import tty
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Put the terminal into raw mode, and restore it afterwards. Input that was typed before is kept."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

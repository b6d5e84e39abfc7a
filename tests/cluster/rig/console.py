"""Progress on standard error: one line a step, with the seconds it took, so that a slow step is seen at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Print one line to standard error at once."""
    print(f"rig: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Time one step. A step that fails prints nothing here; its error does."""
    started = time.monotonic()
    yield
    say(f"{time.monotonic() - started:6.1f} s  {name}")

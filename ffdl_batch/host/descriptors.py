"""Write to file descriptors."""

from __future__ import annotations

import os
from typing import Union


def write_all(descriptor: int, data: Union[bytes, memoryview]) -> None:
    """Write all of `data`, also if write(2) takes only a part of it. Raises OSError, BlockingIOError included."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]

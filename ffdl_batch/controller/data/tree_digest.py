"""What trees look like: whether anything in them is another one than it was, without reading it."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Callable, Iterable, List

LOOK_EACH = 1000
"""Files between two looks whether to go on."""


def sight_of(directories: Iterable[str], go_on: Callable[[], None]) -> str:
    """A digest of the names, inodes, sizes and times of all that lies in the directories. Links are not followed, and
    one directory's names are in memory at a time. What cannot be seen now looks as if it was not there. Raises what
    `go_on` raises, which is called again and again."""
    digest, count = hashlib.sha256(), 0
    for top in directories:
        waiting: List[str] = [top]
        while waiting:
            here = waiting.pop()
            digest.update(os.fsencode(here) + b"\0\0")
            for name in _names(here):
                count += 1
                if count % LOOK_EACH == 0:
                    go_on()
                path = os.path.join(here, name)
                try:
                    found = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
                else:
                    what = f"{found.st_mode:o} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
                    digest.update(os.fsencode(name) + b"\0" + what.encode("ascii") + b"\0")
    return digest.hexdigest()


def _names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []

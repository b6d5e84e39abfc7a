"""What a learner printed, read by its position in the whole of it, over all files of its log."""

from __future__ import annotations

import os
from typing import BinaryIO, List, Optional, Tuple

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.log_paths import TRAINING_LOG, read_log_files
from ffdl_batch.attempt.reader import NO_FILE, open_regular

MISSES = 20
"""So many reads in a row that do not find a file, and it is gone: files are renamed while they are looked for."""


class Printed:
    """The log of one learner (:mod:`ffdl_batch.controller.logs.rotated_log` writes it)."""

    def __init__(self, attempt: AttemptDir, learner_id: int) -> None:
        self._directory, self._cell = attempt.learner_logs(learner_id), attempt.log_files(learner_id)
        self._misses = 0

    def read(self, position: int, most: int) -> Tuple[int, bytes]:
        """Up to `most` bytes from `position` on, and where they begin: later where older files are gone. Raises
        OSError."""
        entries = self._entries()
        if not entries:
            return position, b""
        later = [one for one in entries if one[0] > position]
        held = [one for one in entries if one[0] <= position]
        if not held:
            return self.read(later[0][0], most)
        base, inode = held[-1]
        room = min(most, later[0][0] - position) if later else most
        file = self._open(inode)
        if file is None:
            self._misses += 1
            if not later or self._misses < MISSES:
                return position, b""
            data = b""
        else:
            with file:
                data = os.pread(file.fileno(), room, position - base)
        self._misses = 0
        if not data and later:  # what is missing of it is gone
            return self.read(later[0][0], most)
        return position, data

    def _entries(self) -> List[Tuple[int, int]]:
        """(position, inode) of each file, oldest first."""
        numbers = sorted((file.base, file.inode) for file in read_log_files(self._cell))
        if numbers:
            return numbers
        try:  # nothing was printed yet; there may be words about what is being loaded
            return [(0, os.lstat(os.path.join(self._directory, TRAINING_LOG)).st_ino)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _open(self, inode: int) -> Optional[BinaryIO]:
        try:
            names = [name for name in os.listdir(self._directory) if name.startswith(TRAINING_LOG)]
        except (FileNotFoundError, NotADirectoryError):
            return None
        for name in sorted(names, key=len):
            try:
                file = open_regular(os.path.join(self._directory, name))
            except NO_FILE:
                continue
            if os.fstat(file.fileno()).st_ino == inode:
                return file
            file.close()
        return None

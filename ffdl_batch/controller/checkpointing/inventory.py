"""What became of $CHECKPOINT_DIR: an inventory before the learners start, at a request, and after their end.

A checkpoint is confirmed when a file in it changed after the request and the learners ended by themselves. Every node
takes its own inventories, the last one after its own learners' end: together they hold whatever a learner completed
while it lived, and a network file system shows a node's own files to that node first. The walk is bounded in files and
time; where it was cut short, times of files decide what is new.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from ffdl_batch.attempt.directory_tree import Directories, Gone, Parts
from ffdl_batch.domain.outcome.continuation import Checkpoint

MAX_FILES = 100_000
PATIENCE_S = 5.0
CLOCKS_S = 2.0
"""How far this node's clock and the file system's may be apart, where an inventory was cut short."""

Signature = Tuple[int, int, int]
"""Inode, size, time of the last write in nanoseconds."""


@dataclass(frozen=True)
class Inventory:
    """The files below a directory that hold something, by path relative to it. `whole`: none was left out."""

    files: Mapping[str, Signature] = field(default_factory=dict)
    whole: bool = True


def take_inventory(
    directory: str, patience_s: float = PATIENCE_S, max_files: int = MAX_FILES, *, below: str = ""
) -> Inventory:
    """Walk the directory. A missing one counts as empty. Links are not checkpoints and are not followed, nor is a link
    in place of the directory if the directory is in `below`."""
    end = time.monotonic() + patience_s
    found: Dict[str, Signature] = {}
    waiting: List[Parts] = [()]
    whole = True
    try:
        tree = Directories(directory, below=below)
    except (FileNotFoundError, NotADirectoryError):
        return Inventory()
    except OSError:
        return Inventory(whole=False)
    with tree:
        while waiting:
            parts = waiting.pop()
            try:
                with os.scandir(tree.enter(parts)) as entries:
                    for entry in entries:
                        if len(found) >= max_files or time.monotonic() > end:
                            return Inventory(found, False)
                        _note(entry, parts, found, waiting)
            except Gone:  # while we walked: nothing of it is a checkpoint
                continue
            except OSError:  # what cannot be read is not known
                whole = False
    return Inventory(found, whole)


def _note(entry: "os.DirEntry[str]", below: Parts, found: Dict[str, Signature], waiting: List[Parts]) -> None:
    if entry.is_dir(follow_symlinks=False):
        waiting.append((*below, entry.name))
        return
    if entry.name.startswith(".nfs"):  # a removed file that somebody still holds open
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_size:
        found[os.path.join(*below, entry.name)] = (status.st_ino, status.st_size, status.st_mtime_ns)


def inventory_within(directory: str, patience_s: float, *, below: str = "") -> Inventory:
    """Like :func:`take_inventory`, but a file system that hangs holds nobody up: the inventory is empty then."""
    made: List[Inventory] = []
    thread = threading.Thread(
        target=lambda: made.append(take_inventory(directory, patience_s, below=below)), name="inventory", daemon=True
    )
    thread.start()
    thread.join(patience_s + 0.5)
    return made[0] if made else Inventory({}, False)


def changed(before: Inventory, after: Inventory, since: float) -> List[str]:
    """Files of `after` that are new or differ. `since` (epoch seconds) decides where `before` is not whole."""
    new = [path for path, signature in after.files.items() if before.files.get(path) != signature]
    if before.whole:
        return new
    return [path for path in new if after.files[path][2] / 1e9 >= since - CLOCKS_S]


class CheckpointRecord:
    """The checkpoint activity of the learners of one node. `directory` "" means that there is no checkpoint directory.

    `below` is the job's directory, in which learners can replace `directory` with a link.
    """

    def __init__(self, directory: str, below: str = "") -> None:
        self.directory, self._below = directory, below
        self._start, self._start_at = Inventory(), time.time()
        self._asked, self._asked_at = Inventory(), 0.0
        self._request_at: Optional[float] = None
        self._answered = True
        self._last_end = 0.0

    def begin(self) -> None:
        """Before the first learner starts; still without threads, for learners are forked."""
        self._start_at = time.time()
        if self.directory:
            self._start = take_inventory(self.directory, below=self._below)

    def asked(self, now: float, patience_s: float = PATIENCE_S) -> None:
        """Just before the learners are asked; only the first time counts."""
        if self._request_at is not None:
            return
        self._request_at, self._asked_at = now, time.time()
        if self.directory:
            self._asked = inventory_within(self.directory, patience_s, below=self._below)

    def ended(self, now: float, *, by_itself: bool) -> None:
        """A learner has ended."""
        self._last_end = now
        self._answered = self._answered and by_itself

    def result(self, patience_s: float = PATIENCE_S) -> Checkpoint:
        """The word about it, after the last learner has ended."""
        asked = self._request_at is not None
        answered = asked and self._answered
        took_s = round(max(0.0, self._last_end - self._request_at), 3) if self._request_at is not None else None
        end = Inventory()
        if self.directory:
            end = inventory_within(self.directory, patience_s, below=self._below)
        written = changed(self._start, end, self._start_at)
        newest = max(written, key=lambda path: (end.files[path][2], path), default="")
        return Checkpoint(
            asked=asked,
            confirmed=answered and bool(changed(self._asked, end, self._asked_at)),
            answered=answered,
            took_s=took_s,
            saved_at=end.files[newest][2] / 1e9 if newest else None,
            newest=newest,
        )

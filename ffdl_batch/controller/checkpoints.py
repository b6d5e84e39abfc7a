"""Request checkpoints from learners, and find out whether $CHECKPOINT_DIR has a new one.

A node takes an inventory before its learners start, at a request, and after their end. A checkpoint is confirmed when a
file in it changed after the request and the learners ended by themselves. Every node takes its own inventories, the
last one after the end of its own learners: together they have all that a learner completed, and a network file system
shows a node its own files first. The walk is bounded in files and time; if it was cut short, the times of files decide
what is new.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from dataclasses import field, replace
from typing import Dict, List, Mapping, Optional, Tuple

from ffdl_batch.attempt.directory_tree import Directories, Gone, Parts
from ffdl_batch.controller.rendezvous.node_barrier import notify_others
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.limits import Limits
from ffdl_batch.domain.outcome.continuation import Checkpoint
from ffdl_batch.domain.outcome.controller_events import HALT, IDLE_GPUS, TERM, WARNED
from ffdl_batch.host.fast_dataclass import dataclass

FROM_OUTSIDE = (WARNED, TERM)
"""Reasons that may affect one node alone, which then asks the others."""
OUTSIDE_SHARE = 2 / 3
"""Share of `kill_wait_s` that learners get after a TERM from outside.

The scheduler sends KILL at its end, and before that results must be stored and records written.
"""
STORE_SHARE = 0.9
"""Share of `kill_wait_s` after a TERM from outside at which storing ends, so that the head can write its record."""
ANSWER_SHARE = 0.75
"""Share of the learners' time after a TERM from outside at which those that only read the halt file get TERM."""


@dataclass(frozen=True)
class Request:
    """A checkpoint request. Times are of a :class:`~ffdl_batch.host.running_clock.RunningTime`."""

    reason: str
    at: float
    term_at: float
    """When learners that have not ended get TERM."""
    kill_at: float
    """When they get KILL."""


def new_request(reason: str, limits: Limits, now: float) -> Request:
    """Return a request for `reason` (halt, warned, time, term, idle) made now."""
    if reason == TERM:
        budget_s = limits.kill_wait_s * OUTSIDE_SHARE
        return Request(reason, now, now + budget_s * ANSWER_SHARE, now + budget_s)
    if reason in (HALT, IDLE_GPUS) or limits.lead_s is None:
        term_at = now + limits.grace_s
        return Request(reason, now, term_at, term_at + limits.kill_wait_s)
    # The allocation ends when the lead is over. A learner that does not react continues until shortly before.
    span_s = max(float(limits.lead_s - limits.store_s), limits.grace_s / 2)
    left_s = max(min(float(limits.kill_wait_s), limits.lead_s - span_s), 1.0)
    return Request(reason, now, now + span_s, now + span_s + left_s)


def ask_others(launch: LaunchFile, reason: str = WARNED) -> None:
    """Let all node controllers ask their learners, because this node is about to end. Otherwise the others would wait
    for its learners and save nothing."""
    notify_others(launch, what=HALT, reason=reason)


def join(current: Optional[Request], new: Request) -> Request:
    """Join two requests: the first, with the shorter times. A halt replaces every other reason."""
    if current is None:
        return new
    reason = HALT if new.reason == HALT else current.reason
    return replace(
        current,
        reason=reason,
        term_at=min(current.term_at, new.term_at),
        kill_at=min(current.kill_at, new.kill_at),
    )


MAX_FILES = 100_000
PATIENCE_S = 5.0
CLOCKS_S = 2.0
"""Maximum difference between the clocks of this node and the file system, for incomplete inventories."""

Signature = Tuple[int, int, int]
"""Inode, size, time of the last write in nanoseconds."""


@dataclass(frozen=True)
class Inventory:
    """The non-empty files below a directory."""

    files: Mapping[str, Signature] = field(default_factory=dict)
    """By relative path."""
    whole: bool = True
    """Whether no file was left out."""


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
            except Gone:  # removed during the walk, so it has no checkpoint
                continue
            except OSError:  # unreadable, so its files are unknown
                whole = False
    return Inventory(found, whole)


def _note(entry: "os.DirEntry[str]", below: Parts, found: Dict[str, Signature], waiting: List[Parts]) -> None:
    if entry.is_dir(follow_symlinks=False):
        waiting.append((*below, entry.name))
        return
    if entry.name.startswith(".nfs"):  # a removed file that a process still has open
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_size:
        found[os.path.join(*below, entry.name)] = (status.st_ino, status.st_size, status.st_mtime_ns)


def inventory_within(directory: str, patience_s: float, *, below: str = "") -> Inventory:
    """Like :func:`take_inventory`, but return an empty inventory if the file system hangs."""
    made: List[Inventory] = []
    thread = threading.Thread(
        target=lambda: made.append(take_inventory(directory, patience_s, below=below)), name="inventory", daemon=True
    )
    thread.start()
    thread.join(patience_s + 0.5)
    return made[0] if made else Inventory({}, False)


def changed(before: Inventory, after: Inventory, since: float) -> List[str]:
    """Return files of `after` that are new or differ.

    If `before` is incomplete, they must be newer than `since` (epoch).
    """
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
        """Take the first inventory, before a learner starts. It uses no thread, because learners are forked."""
        self._start_at = time.time()
        if self.directory:
            self._start = take_inventory(self.directory, below=self._below)

    def asked(self, now: float, patience_s: float = PATIENCE_S) -> None:
        """Take an inventory just before the learners are asked. Only the first call counts."""
        if self._request_at is not None:
            return
        self._request_at, self._asked_at = now, time.time()
        if self.directory:
            self._asked = inventory_within(self.directory, patience_s, below=self._below)

    def ended(self, now: float, *, by_itself: bool) -> None:
        """Note that a learner has ended."""
        self._last_end = now
        self._answered = self._answered and by_itself

    def result(self, patience_s: float = PATIENCE_S) -> Checkpoint:
        """Return what is known about the checkpoint, after the last learner has ended."""
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

"""Hold the entries of the node's cache that learners use, and find the learners' image in the cache.

Any process that needs space removes entries, but none whose lock is held. The staging program holds the lock while it
runs, and this process from then until its end.
"""

from __future__ import annotations

import fcntl
import os
from typing import Callable, Dict, Optional

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.data.staging_process import Program, StagingFailed, run_image
from ffdl_batch.controller.data.transfer_progress import into_log
from ffdl_batch.controller.learner.orphans import mark
from ffdl_batch.domain.data.image_task import SIF, ImageTask
from ffdl_batch.domain.data.staging_protocol import Cache, Cached, FaultClass, Line
from ffdl_batch.domain.launch.launch_file import LaunchFile

ROUNDS = 3
"""Maximum calls of the program for an entry that is removed before it can be held."""


class Entries:
    """The entries that this process keeps from being removed."""

    def __init__(self) -> None:
        self._held: Dict[str, int] = {}

    def hold(self, found: Cached) -> bool:
        """Hold the entry. Return whether it exists; then it stays."""
        if found.lock in self._held:
            return True
        try:
            descriptor = os.open(found.lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_named = os.path.samestat(os.fstat(descriptor), os.lstat(found.lock))
        except OSError:
            is_named = False
        if not is_named or not os.path.isdir(found.tree):
            os.close(descriptor)
            return False
        self._held[found.lock] = descriptor
        return True


class Listener:
    """Passes lines on to `report`, and holds cache entries for which `wants` returns true."""

    def __init__(self, entries: Entries, report: Callable[[Line], None], wants: Callable[[Cached], bool]) -> None:
        self._entries, self._report, self._wants = entries, report, wants
        self.found: Optional[Cached] = None
        self.lost = False

    def __call__(self, line: Line) -> None:
        if isinstance(line, Cached) and self._wants(line):
            self.found = line
            self.lost = self.lost or not self._entries.hold(line)
        self._report(line)


def cache_of(launch: LaunchFile) -> Optional[Cache]:
    """Return the cache for tasks of the staging program; None if the node has none."""
    found = launch.cache
    return Cache(found.directory, found.limit_bytes) if found is not None and found.directory else None


def has_links(launch: LaunchFile) -> bool:
    """Return whether directories of the job may be links into the cache of the node that ran it last."""
    return cache_of(launch) is not None and any(fetch.link for fetch in launch.fetches)


def unlink_links(launch: LaunchFile) -> None:
    """Remove those links. Raises OSError."""
    for fetch in launch.fetches:
        if fetch.link and os.path.islink(fetch.local):
            os.unlink(fetch.local)


def find_image(launch: LaunchFile, node_rank: int, go_on: Callable[[], None], entries: Entries) -> str:
    """Return the learners' image on this node: a file of the cache, or its name.

    Raises StagingFailed if a registry has no such image or rejects the credentials, OSError, and what `go_on` raises.
    """
    wanted = launch.cache
    if wanted is None or not wanted.image:
        return ""
    cache = Cache(wanted.directory or wanted.images, wanted.limit_bytes)
    attempt, learner = AttemptDir(launch.attempt_dir), next(iter(launch.learners_on(node_rank)), 1)
    report = into_log(attempt.training_log(learner), attempt.marks(learner), "the image")
    secrets = attempt.secrets if wanted.credentials else ""
    task = ImageTask(wanted.image, cache, wanted.program, secrets, wanted.credentials)
    program = Program(launch.staging, mark(launch.token, node_rank))
    for _ in range(ROUNDS):
        listener = Listener(entries, report, lambda _found: True)
        try:
            run_image(program, task, attempt.staging(f"image-{node_rank}"), go_on, listener)
        except StagingFailed as failed:
            if failed.kind in (FaultClass.MISSING, FaultClass.CREDENTIALS):
                raise
            break
        if listener.found is None:
            break
        if not listener.lost:
            return os.path.join(listener.found.tree, SIF)
    return wanted.image

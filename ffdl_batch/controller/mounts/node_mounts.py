"""Mount stores for the learners of this node, each by a process of its own (:mod:`.mount_process`)."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import subprocess
import sys
import time
from typing import Callable, Collection, Dict, List, Optional, Set

from ffdl_batch.attempt.file_writer import make_private, read_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import DamagedFile, read_object
from ffdl_batch.controller.learner.orphans import HOLDER_MARK, mark
from ffdl_batch.controller.mounts.mount_process import END, FUSERMOUNT, TABLE, clear_dead
from ffdl_batch.controller.mounts.rclone import PROGRAM
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.data.mounts import Mounts
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.filesystem import filesystem_type
from ffdl_batch.host.processes import all_processes, descendants

DATA_CODE = "S302"
DEVICE = "/dev/fuse"
GONE_S = 15.0
_TICK_S = 0.2
_MEMORY = ("tmpfs", "ramfs")
CACHE_SHARE = 4
"""The cache of read data uses at most this part of the free space."""


def lacking() -> str:
    """Return why this node cannot mount stores; "" if it can."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"{DEVICE} does not exist or is closed to this user"
    for programs in (FUSERMOUNT, (PROGRAM,)):
        if not any(shutil.which(program) for program in programs):
            return f"{programs[0]} is not installed"
    return ""


class NodeMounts:
    """The mounts of one node controller."""

    def __init__(self, launch: LaunchFile, node_rank: int, scratch: str) -> None:
        self._launch, self._node_rank, self._scratch = launch, node_rank, scratch
        self._held: Dict[int, _MountProcess] = {}

    def mount(self, number: int, go_on: Callable[[], None]) -> str:
        """Mount the data with this number, unless they are mounted. Return why that failed; "" if it did not.

        Raises what `go_on` raises, after ending the mount process.
        """
        mounts, fetch = self._launch.mounts, self._launch.fetches[number]
        assert mounts is not None
        if number in self._held:
            return self._held[number].failure()
        directory = os.path.join(self._scratch, f"mount-{number}")
        try:
            make_private(directory)
            held = _MountProcess(self._start(fetch, mounts, directory))
        except OSError as error:
            return str(error)
        try:
            why = held.await_mount(go_on)
        except BaseException:
            held.finish()
            raise
        if why:
            held.finish()
        else:
            self._held[number] = held
        return why

    def _start(self, fetch: Transfer, mounts: Mounts, directory: str) -> "subprocess.Popen[bytes]":
        launch = self._launch
        secrets = _read_secrets(launch) if fetch.store.credentials else {}
        room = _cache_bytes(directory, mounts.cache_bytes)
        wanted = {
            "transfer": to_plain(fetch),
            "mounts": {**_plain(mounts), "cache_bytes": room},
            "secrets": {name: secrets[name] for name in fetch.store.credentials.values() if name in secrets},
            "job": os.environ.get(launch.host.allocation or launch.host.native_id, "0") or "0",
        }
        process = subprocess.Popen(
            [*module_argv("ffdl_batch.controller.mounts.mount_process"), directory],
            env={**os.environ, HOLDER_MARK: mark(launch.token, self._node_rank)},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(wanted).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # the process that waits for its report notices its end
        return process

    @property
    def pids(self) -> Set[int]:
        """Return the mount processes and their descendants."""
        table = all_processes()
        return {pid for held in self._held.values() for pid in descendants(held.pid, table)}

    def failure(self, wait_s: float = 0.0) -> str:
        """Return why a mount is gone; "" if all exist. Wait for such a report up to `wait_s` seconds."""
        end = time.monotonic() + (wait_s if self._held else 0.0)
        while True:
            failure = next((found for found in (held.failure() for held in self._held.values()) if found), "")
            if failure or time.monotonic() >= end:
                return failure
            time.sleep(0.02)

    def finish(self) -> None:
        """Unmount everything, and report what cannot be unmounted."""
        for held in self._held.values():
            held.finish()
        holders = {held.pid for held in self._held.values()}
        self._held.clear()
        if holders:
            clear_left(holders)


def clear_left(holders: Collection[int] = ()) -> None:
    """Unmount what killed controllers, or killed mount processes `holders`, left on this node. Errors are reported."""
    try:
        for message in clear_dead(holders):
            sys.stderr.write(f"ffdl-controller: {message}\n")
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: the table of mounts cannot be read: {error}\n")


def _read_secrets(launch: LaunchFile) -> Dict[str, object]:
    """Return the attempt's secrets. Raises OSError if the file is missing or damaged."""
    attempt = AttemptDir(launch.attempt_dir)
    try:
        return read_object(attempt.secrets, below=attempt.path)
    except DamagedFile as error:
        raise OSError(errno.EINVAL, error.why, error.path) from None


def _plain(mounts: Mounts) -> Dict[str, object]:
    found = to_plain(mounts)
    assert isinstance(found, dict)
    return found


def _cache_bytes(directory: str, wanted: int) -> int:
    """Return the size of the cache of read data; 0 if the directory is in memory."""
    try:
        found = os.statvfs(directory)
        kind = filesystem_type(read_text(TABLE), os.path.realpath(directory))
    except OSError:
        return 0
    return 0 if kind in _MEMORY else min(wanted, found.f_bavail * found.f_frsize // CACHE_SHARE)


class _MountProcess:
    """One mount process, as its controller sees it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self._process, self._output = process, process.stdout.fileno()
        self._rest, self._failure = b"", ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_mount(self, go_on: Callable[[], None]) -> str:
        """Wait until the store is mounted. Return why that failed; "" if it did not. Raises what `go_on` raises."""
        while True:
            for word in self._listen(_TICK_S):
                return str(word.get("why", ""))
            if self._process.poll() is not None:
                return f"the process that holds a mount exited with status {self._process.returncode}"
            go_on()

    def failure(self) -> str:
        """Return why the mount is gone; "" if it exists."""
        if not self._failure:
            for word in self._listen(0.0):
                self._failure = str(word.get("ended", ""))
            if not self._failure and self._process.poll() is not None:
                self._failure = "the process that holds the mount was killed"
        return self._failure

    def finish(self) -> None:
        """Unmount the store, and wait for that."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(END)
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        end = time.monotonic() + GONE_S
        while self._process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _listen(self, wait_s: float) -> "List[Dict[str, object]]":
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        if not poll.poll(wait_s * 1000):
            return []
        data = os.read(self._output, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            time.sleep(min(wait_s, 0.02))  # it is ending
        return [word for word in map(_parse_line, lines) if word is not None]


def _parse_line(line: bytes) -> "Optional[Dict[str, object]]":
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None

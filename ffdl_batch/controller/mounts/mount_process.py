"""Hold one mounted store: a process with a session of its own, which runs as long as learners need the mount.

The first line of standard input is a JSON object with what to mount, and with the credentials. rclone reads its
configuration from memory, so no file has them. Another byte unmounts the store and ends rclone. If standard input ends
without that byte, the controller was killed, and the mount stays until its learners end or the next run ends them. Each
line of standard output is a JSON object: that the store is mounted, why it is not, or that rclone ended.

Of the scheduler's signals only KILL reaches this process, because a learner that writes a checkpoint still needs its
data.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Collection, Dict, List, Optional

from ffdl_batch.attempt.log_tail import last_line
from ffdl_batch.controller.learner.orphans import HOLDER_MARK, marked_sessions
from ffdl_batch.controller.mounts import rclone
from ffdl_batch.controller.mounts.rclone import made_ready, obscured, remote_of
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.data.mounts import MountOwner, Mounts, read_source
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.host.core_dumps import hide_memory
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.filesystem import mount_point
from ffdl_batch.host.processes import end_child, end_with_parent, read_living
from ffdl_batch.host.signals import HANDLED, release_signals

FUSERMOUNT = ("fusermount3", "fusermount")
UNMOUNT_S = 10.0
TABLE = "/proc/self/mountinfo"


@dataclass(frozen=True)
class Mounted:
    """A mount in the kernel's table."""

    point: str
    owner: MountOwner
    user: int
    """The user id that the kernel has for the mount."""


def own_mounts() -> List[Mounted]:
    """Return this user's mounts made by such processes, the last one first, so that nested ones can be unmounted."""
    with open(TABLE, encoding="utf-8", errors="surrogateescape") as file:
        found = [_read(line.rstrip("\n")) for line in file]
    return [one for one in reversed(found) if one is not None and one.user == os.getuid()]


def _read(line: str) -> "Mounted | None":
    place, _, rest = line.partition(" - ")
    fields, words = place.split(" "), rest.split(" ")
    if len(fields) < 5 or len(words) < 3 or not words[0].startswith("fuse"):
        return None
    owner = read_source(words[1])
    users = [option[len("user_id=") :] for option in words[2].split(",") if option.startswith("user_id=")]
    if owner is None or not users:
        return None
    return Mounted(mount_point(fields[4]), owner, int(users[0]))


def unmount(point: str) -> str:
    """Unmount the store. Open files stay open. Return an error message; "" if it succeeded."""
    for program in FUSERMOUNT:
        try:
            done = subprocess.run(
                [program, "-u", "-z", "--", point],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=UNMOUNT_S,
                check=False,
            )
        except FileNotFoundError:
            continue
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{program} cannot unmount {point}: {error}"
        text = done.stdout.decode("utf-8", "replace").strip()
        return "" if done.returncode == 0 else f"{program} cannot unmount {point}: {text}"
    return "neither fusermount3 nor fusermount is installed on this node"


def clear_dead(holders: Collection[int] = ()) -> List[str]:
    """Unmount this user's mounts of all jobs whose mount process has ended: access to them fails with ENOTCONN.

    `holders` restricts this to mounts of these processes. Return the error messages.
    """
    dead = [one for one in own_mounts() if not _lives(one.owner) and (not holders or one.owner.pid in holders)]
    return [error for error in (unmount(one.point) for one in dead) if error]


def _lives(owner: MountOwner) -> bool:
    process = read_living(owner.pid)
    return process is not None and process.start_ticks == owner.start_ticks


READY_S = 60.0
"""Seconds until rclone must have mounted the store, and until the store must have listed its first directory."""
LOOK_S, TICK_S, LEFT_S, END_S = 0.02, 0.1, 0.5, 5.0
END = b"."
"""The byte that unmounts the store."""
ERRORS, CACHE = "errors", "cache"


def main(arguments: List[str]) -> int:
    """Run with one argument: a private directory on this node for rclone's files."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED - {signal.SIGCHLD})
    hide_memory()
    wanted = json.loads(_first_line())
    holder = _Holder(arguments[0], wanted)
    try:
        why = holder.begin()
        _print_line({"why": why} if why else {"mounted": True})
        if not why:
            _print_line({"ended": holder.watch()})
    except (OSError, ValueError) as error:
        _print_line({"why": str(error)})
    finally:
        holder.end()
    return 0


def _first_line() -> bytes:
    """Return the first line of standard input without reading further, since later input is polled for."""
    found = b""
    while not found.endswith(b"\n"):
        data = os.read(0, 1)
        if not data:
            break
        found += data
    return found


def _print_line(what: Dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()
    except OSError:  # the reader is gone
        pass


class _Holder:
    def __init__(self, directory: str, wanted: Dict[str, Any]) -> None:
        self._directory = directory
        self._transfer = from_plain(Transfer, wanted["transfer"])
        self._mounts = from_plain(Mounts, wanted["mounts"])
        self._secrets: Dict[str, str] = wanted["secrets"]
        own = read_living(os.getpid())
        self._source = MountOwner(wanted["job"], os.getpid(), own.start_ticks if own else 0).source()
        self._hidden = [value for value in self._secrets.values() if value]
        self._environ = rclone.environment(os.environ, directory)
        self._program: Optional["subprocess.Popen[bytes]"] = None

    def begin(self) -> str:
        """Mount the store. Return why that failed; "" if it did not. Raises OSError, NotMountable."""
        remote = remote_of(self._transfer.store, self._secrets)
        self._hidden += remote.hidden
        text = rclone.config_text(made_ready(remote, self._directory, self._environ), self._obscured)
        cache = self._path(CACHE) if self._mounts.cache_bytes else ""
        config = os.memfd_create("rclone")
        try:
            os.write(config, text.encode())
            argv = rclone.mount_argv(self._transfer, self._mounts, self._source, f"/proc/self/fd/{config}", cache)
            with open(self._path(ERRORS), "wb") as errors:
                self._program = subprocess.Popen(
                    argv,
                    cwd=self._directory,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
                    pass_fds=(config,),
                )
            end = time.monotonic() + READY_S
            while not self._is_mounted():
                if self._program.poll() is not None:
                    return self._ended()
                if time.monotonic() > end or _controller_is_gone(LOOK_S):
                    return f"{rclone.PROGRAM} did not mount the store within {READY_S:.0f} s{self._last_message()}"
        finally:
            os.close(config)
        return self._look()

    def watch(self) -> str:
        """Wait until the mount is gone, and return why; "" if no learner needs it any more."""
        assert self._program is not None
        while not _controller_is_gone(TICK_S):
            if self._program.poll() is not None:
                return self._ended()
        learners = os.environ.get(HOLDER_MARK, "")
        while not os.read(0, 1) and learners and marked_sessions(learners) and self._program.poll() is None:
            time.sleep(LEFT_S)
        return ""

    def end(self) -> None:
        """Unmount the store and end rclone."""
        for one in own_mounts():
            if one.owner.source() == self._source:
                error = unmount(one.point)
                if error:
                    sys.stderr.write(f"ffdl-controller: {error}\n")
        if self._program is not None:
            end_child(self._program, END_S)

    def _obscured(self, text: str) -> str:
        found = obscured(text, self._environ)
        self._hidden.append(found)
        return found

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _is_mounted(self) -> bool:
        return any(one.owner.source() == self._source for one in own_mounts())

    def _look(self) -> str:
        """Check in another process, since it may hang, that the store lists the directory. Return an error message."""
        code = "import os, sys; os.scandir(sys.argv[1]).close(); next(iter(os.scandir(sys.argv[1])), None)"
        look = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, self._transfer.local],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        end = time.monotonic() + READY_S
        while look.poll() is None:
            if time.monotonic() > end or _controller_is_gone(LOOK_S):
                look.kill()
                return f"the mounted store does not list {self._transfer.local}{self._last_message()}"
        assert look.stderr is not None
        errors = look.stderr.read().decode("utf-8", "replace").strip().splitlines()
        look.stderr.close()
        return (
            ""
            if look.returncode == 0
            else f"the mounted store cannot be read: {(errors or ['?'])[-1]}{self._last_message()}"
        )

    def _ended(self) -> str:
        assert self._program is not None
        status = self._program.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        return f"{rclone.PROGRAM} {how}{self._last_message()}"

    def _last_message(self) -> str:
        """Return the last line that rclone printed, after a colon and without secrets."""
        text = last_line(self._path(ERRORS))
        for value in self._hidden:
            text = text.replace(value, "***")
        return f": {text}" if text else ""


def _end_with_parent() -> None:
    """Prepare rclone, between fork and exec, to end when this process is killed."""
    release_signals()
    end_with_parent(signal.SIGTERM)


def _controller_is_gone(wait_s: float) -> bool:
    """Return whether the controller has ended or wrote the byte."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))

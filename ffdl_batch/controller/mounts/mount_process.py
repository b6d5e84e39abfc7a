"""Hold one mount: one process per mounted store, with a session of its own, which lives as long as learners need it.

It reads from standard input, as one JSON object on the first line, what to mount (credentials come that way, too; the
program reads its configuration from memory, no file has it). Another byte ends the mount when no learner needs it: it
is taken away and the program ended. Without one the controller was killed, and learners that it left have their data
until they end, or are ended by the next run. On standard output it says one JSON object a line: that the store is
mounted, why it is not, or that the program ended.

Signals of the scheduler do not reach it, but for KILL: a learner that is asked for a checkpoint needs its data still.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Collection, Dict, List, Optional

from ffdl_batch.attempt.log_tail import last_line
from ffdl_batch.controller.learner.orphans import HOLDER_MARK, marked_sessions
from ffdl_batch.controller.mounts import rclone
from ffdl_batch.controller.mounts.rclone import made_ready, obscured, remote_of
from ffdl_batch.domain.codec import from_plain
from ffdl_batch.domain.data.mounts import MountOwner, Mounts, read_source
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.host.core_dumps import hide_memory
from ffdl_batch.host.filesystem import mount_point
from ffdl_batch.host.processes import end_child, end_with_parent, read_living
from ffdl_batch.host.signals import HANDLED, release_signals

FUSERMOUNT = ("fusermount3", "fusermount")
UNMOUNT_S = 10.0
TABLE = "/proc/self/mountinfo"


@dataclass(frozen=True)
class Mounted:
    """One line of the table. `user` is whose it is, as the kernel says."""

    point: str
    owner: MountOwner
    user: int


def own_mounts() -> List[Mounted]:
    """Those that programs of ours made for this user, the last one first: so they come off each other."""
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
    """Take the mount away, from new look-ups at least: who has something open in it keeps that. What went wrong, "" =
    nothing."""
    said = "neither fusermount3 nor fusermount is on this node"
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
            return f"{program} does not unmount {point}: {error}"
        text = done.stdout.decode("utf-8", "replace").strip()
        return "" if done.returncode == 0 else f"{program} does not unmount {point}: {text}"
    return said


def clear_dead(holders: Collection[int] = ()) -> List[str]:
    """Take away this user's mounts whose holder lives no more, of whatever job: who looks into one is told that its
    transport endpoint is not connected. `holders`: only theirs. What went wrong with each."""
    dead = [one for one in own_mounts() if not _lives(one.owner) and (not holders or one.owner.pid in holders)]
    return [said for said in (unmount(one.point) for one in dead) if said]


def _lives(owner: MountOwner) -> bool:
    process = read_living(owner.pid)
    return process is not None and process.start_ticks == owner.start_ticks


READY_S = 60.0
"""Until the program has mounted the store, and until the store has listed its first directory."""
LOOK_S, TICK_S, LEFT_S, END_S = 0.02, 0.1, 0.5, 5.0
END = b"."
"""The byte."""
ERRORS, CACHE = "errors", "cache"


def main(arguments: List[str]) -> int:
    """The one argument is a directory on this node, closed to others, for what the program needs."""
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
    """Of standard input, and nothing behind it: whether more comes is asked of the descriptor."""
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
        """Why the store is not mounted, "" = it is. Raises OSError, NotMountable."""
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
                    return f"{rclone.PROGRAM} has mounted nothing in {READY_S:.0f} s{self._last_message()}"
        finally:
            os.close(config)
        return self._look()

    def watch(self) -> str:
        """Why the mount is gone, "" = no learner needs it any more."""
        assert self._program is not None
        while not _controller_is_gone(TICK_S):
            if self._program.poll() is not None:
                return self._ended()
        learners = os.environ.get(HOLDER_MARK, "")
        while not os.read(0, 1) and learners and marked_sessions(learners) and self._program.poll() is None:
            time.sleep(LEFT_S)
        return ""

    def end(self) -> None:
        """Leave nothing behind."""
        for one in own_mounts():
            if one.owner.source() == self._source:
                said = unmount(one.point)
                if said:
                    sys.stderr.write(f"ffdl-controller: {said}\n")
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
        """Whether the store lists the directory; another process looks, because it may have to wait for ever."""
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
        said = look.stderr.read().decode("utf-8", "replace").strip().splitlines()
        look.stderr.close()
        return (
            ""
            if look.returncode == 0
            else f"the mounted store cannot be read: {(said or ['?'])[-1]}{self._last_message()}"
        )

    def _ended(self) -> str:
        assert self._program is not None
        status = self._program.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{rclone.PROGRAM} {how}{self._last_message()}"

    def _last_message(self) -> str:
        """The last line of what the program said, after a colon."""
        text = last_line(self._path(ERRORS))
        for value in self._hidden:
            text = text.replace(value, "***")
        return f": {text}" if text else ""


def _end_with_parent() -> None:
    """In the program before it begins: it ends when this process is killed (prctl(2))."""
    release_signals()
    end_with_parent(signal.SIGTERM)


def _controller_is_gone(wait_s: float) -> bool:
    """Whether the controller is gone, or through; it writes nothing any more."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))

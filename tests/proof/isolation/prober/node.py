"""Ways to somebody else on the same node: files, processes, devices, programs. Each answers as those of `wire` do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .wire import Answer

_LIBC = ctypes.CDLL(None, use_errno=True)
# <linux/ptrace.h>, <linux/prctl.h>, <sys/wait.h>
_SEIZE, _INTERRUPT, _DETACH, _SET_NAME, _WAIT_ALL = 0x4206, 0x4207, 17, 15, 0x40000000


def read(paths: Sequence[str], expect: str, **_: object) -> Answer:
    """Find `expect` in one of the files."""
    said = "it is none of these"
    for path in paths:
        try:
            if expect in Path(path).read_text(errors="replace"):
                return True, path
        except OSError as error:
            said = str(error)
    return False, said


def environ(expect: str, **_: object) -> Answer:
    """Find `expect` in the environment of any process that /proc shows."""
    seen = 0
    for directory in _processes():
        with contextlib.suppress(OSError):
            if expect.encode() in (directory / "environ").read_bytes():
                return True, f"process {directory.name}"
            seen += 1
    return False, f"not in the {seen} that can be read"


def device(path: str, **_: object) -> Answer:
    """Open a device file; one that may be opened but has no driver says ENXIO."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return True, f"{path} opens"


def mknod(path: str, number: Sequence[int], **_: object) -> Answer:
    """Make a device file of one's own, and open it."""
    major, minor = number
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
    try:
        return device(path)
    finally:
        Path(path).unlink()


def ptrace(name: str, pid: int = 0, **_: object) -> Answer:
    """Trace the process of that name."""
    for number in _candidates(name, pid):
        if _LIBC.ptrace(_SEIZE, number, None, None) == 0:
            _LIBC.ptrace(_INTERRUPT, number, None, None)
            os.waitpid(number, _WAIT_ALL)
            _LIBC.ptrace(_DETACH, number, None, None)
            return True, f"process {number} was stopped"
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return False, f"there is no process {name}"


def memory(name: str, pid: int = 0, **_: object) -> Answer:
    """Open the memory of the process of that name."""
    for number in _candidates(name, pid):
        with Path(f"/proc/{number}/mem").open("rb"):
            return True, f"memory of process {number}"
    return False, f"there is no process {name}"


def kill(name: str, pid: int = 0, **_: object) -> Answer:
    """Send the process of that name a signal that it ignores."""
    for number in _candidates(name, pid):
        os.kill(number, signal.SIGUSR1)
        return True, f"process {number} got it"
    return False, f"there is no process {name}"


def find(name: str) -> list[int]:
    """The numbers of all processes of a name."""
    return [int(directory.name) for directory in _processes() if _name_of(directory) == name]


def _candidates(name: str, pid: int) -> list[int]:
    """Who has that name; else the number, unless /proc shows that it is somebody else's here."""
    return find(name) or [pid] * (pid > 0 and not Path(f"/proc/{pid}").exists())


def _name_of(directory: Path) -> str:
    try:
        return (directory / "comm").read_text().strip()
    except OSError:
        return ""


def _processes() -> Iterator[Path]:
    return (directory for directory in Path("/proc").iterdir() if directory.name.isdigit())


def inside(argv: Sequence[str], shot: dict[str, Any], **more: Any) -> Answer:
    """Let a program start this prober somewhere else, for one shot."""
    shot = {**shot, **{name: value for name, value in more.items() if name == "patience_s"}}
    done = subprocess.run(argv, input=json.dumps([shot]), capture_output=True, text=True, timeout=60, check=False)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or [f"status {done.returncode}"]
    try:
        answer = json.loads(lines[-1])
    except ValueError:
        return False, lines[-1]
    return bool(answer["through"]), str(answer["said"])


def command(argv: Sequence[str], **_: object) -> Answer:
    """Run a program that must succeed."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"status {done.returncode}"]
    return done.returncode == 0, lines[-1]


def target(name: str) -> None:
    """Be a process of that name, deaf to the signal of `kill`."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _LIBC.prctl(_SET_NAME, name.encode(), 0, 0, 0)
    while True:
        time.sleep(60)

"""Mounts that only a test and what it starts can see: none is left behind, whatever kills it. Needs root.

A small disk is a tmpfs: it can be filled, freed, and made read-only while programs use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNS = 0x00020000  # <linux/sched.h>; sets the thread's file system attributes apart, too (unshare(2))
_BLOCKS = (1 << 16, 1 << 12, 1)


@contextlib.contextmanager
def private_mounts() -> Iterator[None]:
    """Let this thread, and every process that it starts, mount for themselves alone; then be as before."""
    libc = ctypes.CDLL(None, use_errno=True)
    outside, where = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), Path.cwd()
    try:
        _check(libc.unshare(_CLONE_NEWNS), "unshare")
        try:
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            yield
        finally:
            _check(libc.setns(outside, _CLONE_NEWNS), "setns")
            os.chdir(where)
    finally:
        os.close(outside)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system of `size` (as mount(8) has it) at `point`."""

    point: Path
    size: str = "8m"

    def mount(self) -> None:
        """Make it."""
        self.point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}", "small", str(self.point)], check=True)

    def fill(self) -> None:
        """Leave no room in it, not a byte."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            for block in _BLOCKS:
                with contextlib.suppress(_Full):
                    while True:
                        _write(descriptor, b"\0" * block)
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()

    def make(self, kind: str) -> None:
        """`ro` or `rw`, for everybody who uses it; refused while somebody has a file open for writing."""
        subprocess.run(["mount", "-o", f"remount,{kind}", str(self.point)], check=True)

    @property
    def _filler(self) -> Path:
        return self.point / "filler"


class _Full(Exception):
    """There is no room for the block."""


def _write(descriptor: int, block: bytes) -> None:
    try:
        os.write(descriptor, block)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from error

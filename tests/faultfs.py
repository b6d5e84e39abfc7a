"""A shared file system on a bad day: a pass-through whose operations can be made slow, fail or hang.

The server is a process of its own (``python -m tests.faultfs BEHIND POINT FAULTS``), and reads in the file FAULTS what
befalls each operation. Who waits for one that hangs cannot be killed before it goes on, as with a file server that is
gone. Needs root, /dev/fuse and libfuse 3.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mfusepy  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120.0
_LOOK_S = 0.02
_UTIME_NOW = (1 << 30) - 1
_ATTRIBUTES = ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_SPACE = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize", "f_namemax")


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls `operations` (empty = all) on paths that hold `below`: they take `delay_s` longer, fail with `error`
    (an errno), or wait for as long as they `hang`. To open a file for writing is `append`."""

    operations: tuple[str, ...] = ()
    below: str = ""
    delay_s: float = 0.0
    error: int = 0
    hang: bool = False

    def meets(self, operation: str, path: str) -> bool:
        """Whether it befalls this one."""
        return (not self.operations or operation in self.operations) and self.below in path


CHANGING = ("write", "create", "append", "mkdir", "unlink", "rmdir", "rename", "link", "symlink", "truncate", "utimens")
"""The operations that a file system without room, or one for reading alone, refuses."""
SLOW = Fault(delay_s=2.0)
STALE = Fault(error=errno.ESTALE)
BROKEN = Fault(error=errno.EIO)
HANGING = Fault(hang=True)


class PassThrough(mfusepy.Operations):  # type: ignore[misc]  # mfusepy has no types
    """The file system below `behind`, after the fault of the moment."""

    use_ns = True

    def __init__(self, behind: str, faults: str) -> None:
        self._behind, self._faults = behind, faults

    def _meet(self, operation: str, path: str) -> str:
        """The path behind `path`, once whatever befalls the operation is over. Raises OSError."""
        held = False
        while (fault := self._fault(operation, path)) is not None:
            if fault.hang:
                if not held:
                    held = True
                    with open(f"{self._faults}.held", "a", encoding="utf-8") as file:  # noqa: PTH123 - texts throughout
                        file.write(f"{operation} {path}\n")
                time.sleep(_LOOK_S)
                continue
            time.sleep(fault.delay_s)
            if fault.error:
                with open(f"{self._faults}.failed", "a", encoding="utf-8") as file:  # noqa: PTH123
                    file.write(f"{operation} {path}\n")
                raise OSError(fault.error, os.strerror(fault.error))
            break
        return self._behind + path

    def _fault(self, operation: str, path: str) -> Fault | None:
        with open(self._faults, encoding="utf-8") as file:  # noqa: PTH123
            found = (Fault(**{**each, "operations": tuple(each["operations"])}) for each in json.load(file))
            return next((fault for fault in found if fault.meets(operation, path)), None)

    # --------------------------------------------------------------------------------------- names and attributes

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = os.lstat(self._meet("getattr", path))
        return {name: getattr(found, name) for name in _ATTRIBUTES} | {n: getattr(found, f"{n}_ns") for n in _TIMES}

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        with os.scandir(self._meet("readdir", path)) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        return [(name, {"st_ino": status.st_ino, "st_mode": status.st_mode}, 0) for name, status in found]

    def readlink(self, path: str) -> str:
        return os.readlink(self._meet("readlink", path))  # noqa: PTH115

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._meet("mkdir", path), mode)  # noqa: PTH102

    def rmdir(self, path: str) -> None:
        os.rmdir(self._meet("rmdir", path))  # noqa: PTH106

    def unlink(self, path: str) -> None:
        os.unlink(self._meet("unlink", path))  # noqa: PTH108

    def rename(self, old: str, new: str) -> None:
        os.rename(self._meet("rename", old), self._behind + new)  # noqa: PTH104

    def link(self, target: str, source: str) -> None:
        os.link(self._behind + source, self._meet("link", target))

    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._meet("symlink", target))  # noqa: PTH211

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._meet("chmod", path), mode)  # noqa: PTH101

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.lchown(self._meet("chown", path), uid, gid)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._meet("truncate", path), length)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        here = self._meet("utimens", path)
        if times is None or _UTIME_NOW in times:
            os.utime(here)
        else:
            os.utime(here, ns=times)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._meet("statfs", path))
        return {name: getattr(found, name) for name in _SPACE}

    # ------------------------------------------------------------------------------------------------------- content

    def open(self, path: str, flags: int) -> int:
        here = self._meet("append" if flags & (os.O_WRONLY | os.O_RDWR) else "open", path)
        return os.open(here, flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._meet("create", path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._meet("read", path)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._meet("write", path)
        return os.pwrite(fh, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        self._meet("fsync", path)
        os.fsync(fh)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)


class FaultFs:
    """One mounted file system. `point` is where programs see it; tests look at `behind`, which always answers."""

    def __init__(self, base: Path) -> None:
        self.point, self.behind, self._faults = base / "shared", base / "behind", base / "faults.json"
        for directory in (self.point, self.behind):
            directory.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        """Begin to serve."""
        self.clear()
        argv = [sys.executable, "-m", "tests.faultfs", str(self.behind), str(self.point), str(self._faults)]
        with self._faults.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + LIMIT_S
        while not self.point.is_mount():
            assert self._process.poll() is None, f"the file system's server ended with {self._process.returncode}"
            assert time.monotonic() < end, f"no file system at {self.point}"
            time.sleep(_LOOK_S)

    def befall(self, *faults: Fault) -> None:
        """From here on, in place of what was before. The first one that meets an operation counts."""
        fresh = self._faults.with_suffix(".fresh")
        fresh.write_text(json.dumps([dataclasses.asdict(fault) for fault in faults]))
        for kind in ("held", "failed"):
            self._faults.with_name(f"faults.json.{kind}").unlink(missing_ok=True)
        fresh.replace(self._faults)

    def clear(self) -> None:
        """All is well again; what hangs goes on."""
        self.befall()

    def held(self) -> list[str]:
        """The operations that began to hang since the last change, each with its path."""
        return self._met("held")

    def failed(self) -> list[str]:
        """Return the operations that failed with an error since the last change, each with its path."""
        return self._met("failed")

    def await_failures(self, count: int) -> None:
        """Wait until `count` more operations have failed."""
        end, enough = time.monotonic() + LIMIT_S, len(self.failed()) + count
        while len(self.failed()) < enough:
            assert time.monotonic() < end, f"fewer than {count} operations failed"
            time.sleep(_LOOK_S)

    def _met(self, kind: str) -> list[str]:
        path = self._faults.with_name(f"faults.json.{kind}")
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def hide(self) -> None:
        """Let its place be as empty as before it was mounted; who has a file of it open keeps it."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "empty", str(self.point)], check=True)

    def show(self) -> None:
        """End :meth:`hide`, whatever somebody left in the empty place."""
        subprocess.run(["umount", "-l", str(self.point)], check=True)

    def close(self) -> None:
        """End it. Whoever waits in it fails then, whatever hung."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        subprocess.run(["umount", "-l", str(self.point)], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def fault_fs(base: Path) -> Iterator[FaultFs]:
    """A mounted one, gone afterwards."""
    made = FaultFs(base)
    try:
        made.mount()
        yield made
    finally:
        made.close()


def main(behind: str, point: str, faults: str) -> None:
    """Serve until the process is killed or the file system unmounted."""
    mfusepy.FUSE(PassThrough(behind, faults), point, foreground=True, use_ino=True, fsname="faultfs")


if __name__ == "__main__":
    main(*sys.argv[1:])

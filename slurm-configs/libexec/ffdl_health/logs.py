"""New lines of a log since the last look: the kernel's own buffer, its journal, or a file that somebody rotates.

Each reader takes what is remembered of its source (a dictionary, which JSON can hold) and changes it to where the next
look goes on. A line comes once; one of a source that is looked at for the first time comes if it says itself when it
was logged, and that was since the node's boot.
"""

from __future__ import annotations

import errno
import os
import re
import time
from datetime import datetime
from typing import Any, Iterator, NamedTuple

from . import bounded

Memory = dict  # of JSON: Python 3.9 knows no recursive alias
RECORDS_MOST = 20_000
BYTES_MOST = 4 << 20
"""So much of a log is read at one look: of more, the newest."""
FIRST_BYTES = 256 << 10
"""So much of a file's end is read at the first look."""
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+(?:\S+\s+kernel:\s*)?")
_SLURM = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\]\s+")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d+) (\d\d:\d\d:\d\d)\s+(?:\S+\s+kernel:\s*)?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_JOURNAL = re.compile(r"(\d+(?:\.\d+)?) \S+ kernel: (.*)")
_UPTIME = re.compile(r"\[ *\d+\.\d+\]\s*")


class Line(NamedTuple):
    """`at` in seconds since the epoch."""

    at: float
    text: str


def of_kmsg(path: str, memory: Memory) -> Iterator[Line]:
    """Records of the kernel's buffer (Linux, Documentation/ABI/testing/dev-kmsg): priority, number, microseconds since
    boot; text. Raises OSError."""
    last = int(memory.get("seq", -1))
    offset_s = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(RECORDS_MOST):
            record = _record(descriptor)
            if record is None:
                return
            head, _, text = record.partition(";")
            fields = head.split(",")
            if len(fields) < 3 or not all(map(str.isdecimal, fields[:3])) or int(fields[1]) <= last:
                continue
            last = memory["seq"] = int(fields[1])
            if int(fields[0]) >= 8:  # the kernel's facility is 0, which processes cannot set
                continue
            yield Line(offset_s + int(fields[2]) / 1e6, text.split("\n")[0])
    finally:
        os.close(descriptor)


def _record(descriptor: int) -> str | None:
    """The next one, None after the last. Those that were overwritten meanwhile are passed over."""
    while True:
        try:
            return os.read(descriptor, 1 << 14).decode("utf-8", errors="replace") or None
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise


def of_journal(memory: Memory, timeout_s: float) -> Iterator[Line]:
    """The kernel's lines since the boot in systemd's journal (journalctl(1); `--cursor-file` is not in all releases).
    Raises OSError."""
    argv = ["journalctl", "-k", "-q", "--no-pager", "-o", "short-unix", "--show-cursor", "-n", str(RECORDS_MOST)]
    if memory.get("cursor"):
        argv += ["--after-cursor", str(memory["cursor"])]
    answer = bounded.ask(argv, timeout_s)
    if answer.status != 0:
        memory.clear()  # a cursor that the journal does not know any more
        raise OSError(f"journalctl ended with {answer.status}: {answer.text[-200:].strip()}")
    for line in answer.text.split("\n"):  # str.splitlines would also split at other characters in a message
        if line.startswith("-- cursor: "):
            memory["cursor"] = line.partition(": ")[2]
            continue
        found = _JOURNAL.match(line)
        if found is not None:
            yield Line(float(found.group(1)), found.group(2))


def of_file(path: str, memory: Memory, boot_at: float) -> Iterator[Line]:
    """New lines of a file, and what was written into it before somebody moved it to `<path>.1`. `boot_at`: since when
    this boot is up. Raises OSError."""
    known = (memory.get("device"), memory.get("inode"))
    first = known == (None, None)
    for name in (f"{path}.1", path):
        with _opened(name, optional=name != path) as file:
            if file is None:
                continue
            stat = os.fstat(file.fileno())
            is_known = known == (stat.st_dev, stat.st_ino)
            if name != path and not is_known:
                continue
            begin = int(memory.get("position", 0)) if is_known else 0
            if begin > stat.st_size:  # emptied
                begin = 0
            if first:
                begin = max(0, stat.st_size - FIRST_BYTES)
            yield from _lines(file, max(begin, stat.st_size - BYTES_MOST), memory, boot_at if first else None)
            memory["device"], memory["inode"] = stat.st_dev, stat.st_ino


class _opened:  # noqa: N801 - a function to who uses it
    """A file for reading, None where an `optional` one is not there."""

    def __init__(self, path: str, *, optional: bool) -> None:
        self._path, self._optional, self._file = path, optional, None

    def __enter__(self) -> Any:
        try:
            self._file = os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        except FileNotFoundError:
            if not self._optional:
                raise
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _lines(file: Any, begin: int, memory: Memory, boot_at: float | None) -> Iterator[Line]:
    """Whole lines from `begin` on. `boot_at`: only those that say that they were logged since then."""
    file.seek(begin)
    position = begin
    for raw in file:
        if not raw.endswith(b"\n"):  # it is being written
            break
        position += len(raw)
        memory["position"] = position
        at, text = timed(raw.decode("utf-8", errors="replace").rstrip("\n"), time.time())
        if boot_at is not None and (at is None or at < boot_at):
            continue
        yield Line(time.time() if at is None else at, text)
    memory["position"] = position


def timed(line: str, now: float) -> tuple[float | None, str]:
    """When a line of a file was logged, where it says so, and its text. rsyslog and journalctl (ISO or the old form,
    which has no year), slurmd's brackets, dmesg's seconds since boot (passed over)."""
    found = _SLURM.match(line)
    if found is not None:  # a following [49.0] is a step, not an uptime
        return _iso(found.group(1)), line[found.end() :]
    found = _ISO.match(line)
    if found is not None:
        return _iso(found.group(1)), _UPTIME.sub("", line[found.end() :], count=1)
    found = _SYSLOG.match(line)
    if found is not None:
        return _syslog(*found.groups(), now=now), _UPTIME.sub("", line[found.end() :], count=1)
    return None, _UPTIME.sub("", line, count=1)


def _iso(text: str) -> float | None:
    """Without a zone it is the node's own time."""
    text = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace(",", ".").replace("Z", "+00:00"))
    text = re.sub(r"\.(\d+)", lambda found: "." + found.group(1)[:6].ljust(6, "0"), text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _syslog(month: str, day: str, clock: str, *, now: float) -> float | None:
    """The year is this one, or the last one where the line would be of tomorrow."""
    if month not in _MONTHS:
        return None
    year = datetime.fromtimestamp(now).year
    for candidate in (year, year - 1):
        try:
            at = datetime(candidate, _MONTHS.index(month) + 1, int(day), *map(int, clock.split(":"))).timestamp()
        except ValueError:
            continue
        if at <= now + 86400:
            return at
    return None

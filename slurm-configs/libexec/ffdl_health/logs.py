"""Reads the new lines of a log since the last check: the kernel's buffer, its journal, or a file that is rotated.

Each reader takes the memory of its source (a dictionary that JSON can represent) and stores in it where the next check
continues. Each line is returned once. The first check of a source returns only lines with a time since the node's boot.
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
"""Maximum size of a log that one check reads. If there is more, it reads the newest part."""
FIRST_BYTES = 256 << 10
"""Size of the end of a file that the first check reads."""
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+(?:\S+\s+kernel:\s*)?")
_SLURM = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\]\s+")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d+) (\d\d:\d\d:\d\d)\s+(?:\S+\s+kernel:\s*)?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_JOURNAL = re.compile(r"(\d+(?:\.\d+)?) \S+ kernel: (.*)")
_UPTIME = re.compile(r"\[ *\d+\.\d+\]\s*")


class Line(NamedTuple):
    """A line of a log. `at` is in seconds since the epoch."""

    at: float
    text: str


def of_kmsg(path: str, memory: Memory) -> Iterator[Line]:
    """Yield records of the kernel's buffer. Raises OSError.

    A record has priority, number, microseconds since boot; text (Linux, Documentation/ABI/testing/dev-kmsg).
    """
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
    """Return the next record; None after the last. Skips records that were overwritten."""
    while True:
        try:
            return os.read(descriptor, 1 << 14).decode("utf-8", errors="replace") or None
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise


def of_journal(memory: Memory, timeout_s: float) -> Iterator[Line]:
    """Yield the kernel's lines since the boot in systemd's journal. Raises OSError.

    See journalctl(1). Not all releases have `--cursor-file`.
    """
    argv = ["journalctl", "-k", "-q", "--no-pager", "-o", "short-unix", "--show-cursor", "-n", str(RECORDS_MOST)]
    if memory.get("cursor"):
        argv += ["--after-cursor", str(memory["cursor"])]
    answer = bounded.ask(argv, timeout_s)
    if answer.status != 0:
        memory.clear()  # the journal may not have the cursor any more
        raise OSError(f"journalctl ended with {answer.status}: {answer.text[-200:].strip()}")
    for line in answer.text.split("\n"):  # str.splitlines would also split at other characters in a message
        if line.startswith("-- cursor: "):
            memory["cursor"] = line.partition(": ")[2]
            continue
        found = _JOURNAL.match(line)
        if found is not None:
            yield Line(float(found.group(1)), found.group(2))


def of_file(path: str, memory: Memory, boot_at: float) -> Iterator[Line]:
    """Yield the new lines of a file, and those of `<path>.1` if the file was moved there. Raises OSError.

    `boot_at` is the time of the boot.
    """
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


class _opened:  # noqa: N801 - used as a function
    """Open a file for reading; None if an `optional` file does not exist."""

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
    """Yield complete lines from `begin` on. With `boot_at`, only lines that have a time since then."""
    file.seek(begin)
    position = begin
    for raw in file:
        if not raw.endswith(b"\n"):  # it is still being written
            break
        position += len(raw)
        memory["position"] = position
        at, text = timed(raw.decode("utf-8", errors="replace").rstrip("\n"), time.time())
        if boot_at is not None and (at is None or at < boot_at):
            continue
        yield Line(time.time() if at is None else at, text)
    memory["position"] = position


def timed(line: str, now: float) -> tuple[float | None, str]:
    """Return when a line was logged, if it has a time, and its text.

    The formats are those of rsyslog and journalctl (ISO or the old one without year), and of slurmd (in brackets). The
    seconds since boot of dmesg are skipped.
    """
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
    """Return the time of an ISO text. Without a zone it is the node's local time."""
    text = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text.replace(",", ".").replace("Z", "+00:00"))
    text = re.sub(r"\.(\d+)", lambda found: "." + found.group(1)[:6].ljust(6, "0"), text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _syslog(month: str, day: str, clock: str, *, now: float) -> float | None:
    """Return the time of the old format.

    The year is the current one, or the previous one if the time would be more than a day in the future.
    """
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

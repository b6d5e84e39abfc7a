"""Read and write the files of a local job in ``<attempt>/local/``, for the adapter and the supervisor.

::

    lock           held (flock) from before the supervisor starts until supervisor and head have both ended
    started.json   the process that executes the attempt: native id, host, pid, start ticks, boot id
    state.json     pending or running, why it waits, the head's pid
    exit.json      how the head ended

It uses only the standard library and lower packages, because the supervisor runs without site packages.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import give_access, restore_directory, write_text
from ffdl_batch.attempt.reader import NO_FILE, DamagedFile, DeniedFile, open_regular, read_object
from ffdl_batch.host.processes import boot_id

LOCK, STARTED, STATE, EXIT = "lock", "started.json", "state.json", "exit.json"
JOB_FILE = "local.json"


def local_directory(attempt_dir: str) -> Path:
    """Return the directory of these files."""
    return Path(attempt_dir) / "local"


def write_record(path: Path, body: dict[str, object]) -> None:
    """Replace the record: readers see the old one or the new one, also after a crash. Raises OSError."""
    restore_directory(str(path.parent))
    write_text(str(path), json.dumps(body, sort_keys=True) + "\n")


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the record; None if the file is missing, {} if it is damaged. If the job closed it or a directory above it
    (``chmod 000``), it is opened again. Raises OSError."""
    try:
        return read_object(str(path))
    except DeniedFile:
        return read_record(path) if give_access(str(path)) else {}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedFile:
        return {}


def lives(record: dict[str, Any], pid: str, ticks: str) -> bool:
    """Return whether the process with the `pid` and `ticks` of a record is alive in this boot."""
    number, boot = record.get(pid), boot_id()
    if not isinstance(number, int) or number <= 0 or record.get("boot_id", boot) != boot:
        return False
    stat = process_stat(number)
    return stat is not None and stat[0] not in "ZX" and stat[2] == record.get(ticks)


def is_held(lock: Path) -> bool:
    """Return whether a living process of this host holds the lock."""
    try:
        file = open_regular(str(lock))  # LOCK_SH needs no write permission
    except DeniedFile:
        return is_held(lock) if give_access(str(lock)) else False
    except NO_FILE:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def process_stat(pid: int) -> tuple[str, int, int] | None:
    """Return state letter, parent and start time in ticks of a process (proc(5)); None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(")") + 2 :].split()
    return rest[0], int(rest[1]), int(rest[19])

"""What a local job leaves in ``<attempt>/local/``: names and formats, for the adapter and the supervisor.

::

    lock           held (flock) from before the supervisor starts until supervisor and head have both ended
    started.json   who executes the attempt: native id, host, pid, start ticks, boot id
    state.json     pending or running, why it waits, the head's pid
    exit.json      how the head ended

Standard library only: the supervisor runs without site packages.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

LOCK, STARTED, STATE, EXIT = "lock", "started.json", "state.json", "exit.json"
BATCH_LOG = "batch.log"
JOB_FILE = "local.json"


def local_directory(attempt_dir: str) -> Path:
    """The directory of these files."""
    return Path(attempt_dir) / "local"


def write_record(path: Path, body: dict[str, object]) -> None:
    """Replace the record: readers see the old one or the new one, also after a crash. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(body, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, or None where there is none. Raises OSError but for a missing file."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def is_held(lock: Path) -> bool:
    """Whether a living process of this host holds the lock."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)  # enough for LOCK_SH, also where nothing can be written
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def boot_id() -> str:
    """What changes with every boot (proc(5))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def process_stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, parent and start time in ticks of a process (proc(5)); None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    rest = text[text.rindex(")") + 2 :].split()
    return rest[0], int(rest[1]), int(rest[19])

"""What the daemon leaves in an attempt's directory of an end that it asks for: it outlives the daemon and the Job."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import find_text, status_of

CANCELLED = "submit/cancelled"
"""Empty: its controllers were asked to end, and its Job was, or is about to be, ended by us."""
PREEMPTED = "submit/preempted"
"""Its Job was, or is about to be, deleted by us, because it had been suspended: why."""
NO_IMAGE = "submit/no-image"
"""Its Job was, or is about to be, ended by us, because an image of it could not be had for too long: which."""
NODE_LOST = "submit/node-lost"
"""Names the node that does not answer any more, for which the daemon ends the Job or has ended it."""
SENT_TO = "submit/cluster"
"""Where it was, or is about to be, sent to: no word about its end."""
END_TOLD = "submit/end-told"
"""Empty: its controllers left no last word, and the daemon was told that it ended: no word about how."""
ALL = (CANCELLED, PREEMPTED, NO_IMAGE, NODE_LOST)


def leave(attempt: AttemptDir, mark: str, why: str = "") -> None:
    """Of several empty ones the first stays, and with it the time. Raises OSError."""
    path = Path(attempt.path, mark)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why or status_of(str(path)) is None:
        write_text(str(path), why)


def is_there(attempt: AttemptDir, mark: str) -> bool:
    """Whether it was left."""
    return os.path.lexists(Path(attempt.path, mark))


def read(attempt: AttemptDir, mark: str) -> str:
    """Why ("" = it was not left)."""
    return find_text(str(Path(attempt.path, mark)))


def age_s(attempt: AttemptDir, mark: str) -> float | None:
    """How long ago it was left; None where it was not."""
    try:
        return abs(time.time() - Path(attempt.path, mark).lstat().st_mtime)
    except FileNotFoundError:
        return None

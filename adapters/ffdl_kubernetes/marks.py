"""What the daemon leaves in an attempt's directory of an end that it asks for: it outlives the daemon and the Job."""

from __future__ import annotations

import time
from pathlib import Path

from ffdl_batch.domain.jobdir import AttemptDir

CANCELLED = "submit/cancelled"
"""Empty: its controllers were asked to end, and its Job was, or is about to be, ended by us."""
PREEMPTED = "submit/preempted"
"""Its Job was, or is about to be, deleted by us, because it had been suspended: why."""
NO_IMAGE = "submit/no-image"
"""Its Job was, or is about to be, ended by us, because an image of it could not be had for too long: which."""
SENT_TO = "submit/cluster"
"""Where it was, or is about to be, sent to: no word about its end."""
END_TOLD = "submit/end-told"
"""Empty: its controllers left no last word, and the daemon was told that it ended: no word about how."""
ALL = (CANCELLED, PREEMPTED, NO_IMAGE)


def leave(attempt: AttemptDir, mark: str, why: str = "") -> None:
    """Of several empty ones the first stays, and with it the time. Raises OSError."""
    path = Path(attempt.path, mark)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why or not path.exists():
        path.write_text(why, encoding="utf-8")
        path.chmod(0o600)


def is_there(attempt: AttemptDir, mark: str) -> bool:
    """Whether it was left."""
    return Path(attempt.path, mark).exists()


def read(attempt: AttemptDir, mark: str) -> str:
    """Why ("" = it was not left)."""
    path = Path(attempt.path, mark)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def age_s(attempt: AttemptDir, mark: str) -> float | None:
    """How long ago it was left; None where it was not."""
    try:
        return abs(time.time() - Path(attempt.path, mark).stat().st_mtime)
    except FileNotFoundError:
        return None

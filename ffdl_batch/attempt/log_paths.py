"""Paths of one learner's log in an attempt's directory, and the cell that names the log's files.

The process that writes the log loads this module and little else.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple

from ffdl_batch.attempt.reader import find_object

TRAINING_LOG = "training-log.txt"


class LogFile(NamedTuple):
    """A file of a log."""

    inode: int
    base: int
    """Its position in the whole output, in bytes."""
    lines: int
    """Number of lines before it."""


def learner_logs(attempt_dir: str, learner_id: int) -> str:
    """Return $LOG_DIR of one learner (counted from 1) on the host."""
    return os.path.join(attempt_dir, "logs", f"learner-{learner_id}")


def marks(attempt_dir: str, learner_id: int) -> str:
    """Return the file with the times at which the log of one learner had which size."""
    return os.path.join(attempt_dir, "events", f"learner-{learner_id}.marks")


def log_files(attempt_dir: str, learner_id: int) -> str:
    """Return the cell with the files of one learner's log."""
    return os.path.join(attempt_dir, "events", f"learner-{learner_id}.files")


def read_log_files(cell: str) -> List[LogFile]:
    """Return the files that the cell names, in its order; [] if the cell does not exist or is damaged."""
    found = find_object(cell).get("files")
    entries = [entry for entry in (found if isinstance(found, list) else []) if isinstance(entry, dict)]
    files = [LogFile(entry.get("inode", -1), entry.get("base", -1), entry.get("lines", -1)) for entry in entries]
    return [file for file in files if all(isinstance(value, int) and value >= 0 for value in file)]

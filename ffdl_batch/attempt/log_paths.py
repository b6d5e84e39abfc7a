"""Where one learner's log lies in an attempt's directory: for the process that writes it, which loads little else."""

from __future__ import annotations

import os

TRAINING_LOG = "training-log.txt"


def learner_logs(attempt_dir: str, learner_id: int) -> str:
    """$LOG_DIR of one learner (counted from 1) on the host."""
    return os.path.join(attempt_dir, "logs", f"learner-{learner_id}")


def marks(attempt_dir: str, learner_id: int) -> str:
    """When the log of one learner had which size."""
    return os.path.join(attempt_dir, "events", f"learner-{learner_id}.marks")


def log_files(attempt_dir: str, learner_id: int) -> str:
    """Cell: the files of one learner's log, oldest first, and where in the whole of its output each begins."""
    return os.path.join(attempt_dir, "events", f"learner-{learner_id}.files")

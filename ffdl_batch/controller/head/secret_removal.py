"""The secrets of an attempt go when nothing is left to do that needs them."""

from __future__ import annotations

import os
import sys

from ffdl_batch.attempt.conclusion import may_run_again
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn


def forget_template(launch: LaunchFile, final: FinalRecord) -> None:
    """Before the last word is written, by which the platform may write a new one: that of the next attempt, where no
    head makes one from it."""
    if final.goes_on in (GoesOn.NO, GoesOn.PLATFORM) and not may_run_again(final):
        remove(JobDir(launch.job_dir).template)


def forget_attempt(launch: LaunchFile, final: FinalRecord) -> None:
    """After it: this attempt's own, where everything is stored and it is not started anew."""
    if final.stored and not may_run_again(final):
        remove(AttemptDir(launch.attempt_dir))


def remove(attempt: AttemptDir) -> None:
    """The file, where there is one; what cannot be removed now is the platform's to remove."""
    try:
        os.unlink(attempt.secrets)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")

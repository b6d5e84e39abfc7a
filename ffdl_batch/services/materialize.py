"""Writes an attempt's directory before the scheduler hears of it. Doing it twice gives the same files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

from ffdl_batch.domain.job import Job
from ffdl_batch.domain.job_state import Wish
from ffdl_batch.domain.jobdir import AttemptDir, JobDir, Root
from ffdl_batch.ports.scheduler import LaunchPlan
from ffdl_batch.services.control import write_control
from ffdl_batch.services.whole_files import write_whole


def exported_environment(job_dir: JobDir) -> dict[str, str]:
    """Variables that the submission exported."""
    try:
        plain = json.loads(Path(job_dir.exported).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {str(k): str(v) for k, v in plain.items()}


def materialize(root: Root, job: Job, plan: LaunchPlan) -> None:
    """Make the job's and the attempt's directories and every planned file; raises OSError.

    Cells and directories that controllers on several nodes look at are made here, once, so that no network file
    system has to notice their appearance.
    """
    job_dir, attempt = root.job(job.id), plan.attempt_dir
    for directory in (job_dir.path, job_dir.checkpoints, *_directories(attempt)):
        Path(directory).mkdir(mode=0o700, exist_ok=True)
    if not Path(job_dir.manifest).exists():
        write_whole(Path(job_dir.manifest), job.spec.manifest_text)
    _place_model(root, job)
    _write_files(plan)
    # A wish that came after the row was read may be in the cell already: only a wish that we know of is written.
    write_control(root, job, wish=job.wish if job.wish is not Wish.NONE else None)


def materialize_template(root: Root, job: Job, plan: LaunchPlan | None) -> None:
    """Write the files from which a head makes the next attempt, or make sure that there are none; raises OSError."""
    directory = Path(root.job(job.id).template.path)
    if plan is None:
        if directory.exists():
            shutil.rmtree(directory)
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    _write_files(plan)


def _write_files(plan: LaunchPlan) -> None:
    directory = Path(plan.attempt_dir.path)
    for file in plan.files:
        target = directory / file.name
        if target.parent != directory:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(target, file.text, mode=file.mode)


def _directories(attempt: AttemptDir) -> tuple[str, ...]:
    return (
        attempt.path,
        attempt.submit,
        attempt.events,
        attempt.state,
        attempt.model,
        attempt.data,
        attempt.results,
        attempt.logs,
    )


def _place_model(root: Root, job: Job) -> None:
    """The archive by hard link, or by copy where the file system has none."""
    source, target = Path(root.model(job.model_digest)), Path(root.job(job.id).model_archive)
    if target.exists():
        return
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            shutil.copyfile(source, temporary)
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)


def mark_begun(attempt: AttemptDir) -> None:
    """From here on the scheduler may have heard of the attempt. Durable: a crash must not forget it."""
    write_whole(Path(attempt.submit_begun), "begun\n", durable=True)


def begun_at(attempt: AttemptDir) -> float | None:
    """When the scheduler was asked last (seconds since the epoch), or None if it surely never was."""
    try:
        return Path(attempt.submit_begun).stat().st_mtime
    except FileNotFoundError:
        return None


def unmark_begun(attempt: AttemptDir) -> None:
    """The scheduler surely did not take it."""
    with contextlib.suppress(FileNotFoundError):
        Path(attempt.submit_begun).unlink()

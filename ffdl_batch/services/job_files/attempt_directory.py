"""Writes an attempt's directory before its submission. Writing it twice gives the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

from ffdl_batch.attempt.element_files import places_of
from ffdl_batch.attempt.file_writer import write_bytes, write_text
from ffdl_batch.attempt.layout import ArrayDir, AttemptDir, JobDir, Root
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, NO_FILE, DamagedFile, find_text, read_head, read_object
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.job_state import RequestedAction
from ffdl_batch.runtimes.launch_request import ArrayPlan, LaunchPlan
from ffdl_batch.services.job_files.control_cell import write_control
from ffdl_batch.services.secrets.job_secrets import place_secrets


def exported_environment(root: Root, job: Job) -> dict[str, str]:
    """Return the variables that the submission exported. Those of an array are in its directory. Raises OSError."""
    element = job.spec.element
    directory: ArrayDir | JobDir = root.job(job.id) if element is None else root.array(element.array)
    try:
        plain = read_object(directory.exported, MAX_TEXT_BYTES)
    except FileNotFoundError:
        return {}
    except DamagedFile as error:
        raise OSError(str(error)) from None
    return {str(k): str(v) for k, v in plain.items()}


def materialize(root: Root, job: Job, plan: LaunchPlan) -> None:
    """Create the job's and the attempt's directories and every planned file. Raises OSError and SecretMissing.

    Directories and files that controllers on several nodes read are created here, once, so that no network file system
    has cached their absence.
    """
    job_dir, attempt = root.job(job.id), plan.attempt_dir
    for directory in (job_dir.path, job_dir.checkpoints, *places_of(attempt)):
        Path(directory).mkdir(mode=0o700, exist_ok=True)
    _place_manifest(root, job)
    _link(Path(root.model(job.model_digest)), Path(job_dir.model_archive))
    _write_files(plan)
    place_secrets(root, job, attempt)
    # The cell may have a request that came after the row was read: write only a request that the row has.
    write_control(
        root, job, requested_action=job.requested_action if job.requested_action is not RequestedAction.NONE else None
    )


def make_chunk(root: Root, array: str) -> tuple[int, AttemptDir]:
    """Create a directory for elements of `array` that are submitted together; return it and its number, which is used
    only once. Raises OSError.
    """
    directory = Path(root.array(array).path)
    numbers = [int(path.name.removeprefix("chunk-")) for path in directory.glob("chunk-[0-9]*")]
    number = max(numbers, default=0) + 1
    while True:
        chunk = root.array(array).chunk(number)
        try:
            Path(chunk.path).mkdir(mode=0o700)
        except FileExistsError:
            number += 1
            continue
        Path(chunk.submit).mkdir(mode=0o700)
        return number, chunk


def materialize_chunk(plan: ArrayPlan) -> None:
    """Write the files of a native array durably, because its tasks find their attempts by them. Raises OSError."""
    for file in plan.files:
        write_text(Path(plan.chunk.directory.path, file.name), file.text, file.mode)


def empty_chunk(chunk: AttemptDir) -> None:
    """Remove the files of a chunk that the scheduler has provably not accepted. The directory stays, so that its number
    is not used again."""
    for path in (Path(chunk.elements), Path(chunk.script), Path(chunk.tasks)):
        path.unlink(missing_ok=True)
    shutil.rmtree(chunk.submit, ignore_errors=True)


def materialize_template(root: Root, job: Job, plan: LaunchPlan | None) -> None:
    """Write the files from which a head creates the next attempt, or remove them if `plan` is None. Raises OSError and
    SecretMissing."""
    template = root.job(job.id).template
    directory = Path(template.path)
    if plan is None:
        if directory.is_dir() and not directory.is_symlink():
            shutil.rmtree(directory)
        else:
            directory.unlink(missing_ok=True)
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    _write_files(plan)
    place_secrets(root, job, template)


def _write_files(plan: LaunchPlan) -> None:
    directory = Path(plan.attempt_dir.path)
    for file in plan.files:
        target = directory / file.name
        if target.parent != directory:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(target, file.text, file.mode, durable=False)


def _place_manifest(root: Root, job: Job) -> None:
    target, element = Path(root.job(job.id).manifest), job.spec.element
    if element is not None:
        _link(Path(root.array(element.array).manifest), target)
    elif not target.exists():
        write_text(target, job.spec.manifest_text, durable=False)


def _link(source: Path, target: Path) -> None:
    """Create `target` by hard link, or by copy if the file system has no hard links. Raises FileNotFoundError for the
    source."""
    if target.exists():
        return
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        write_bytes(str(target), source.read_bytes(), durable=False)


def mark_begun(attempt: AttemptDir, by: str, task: str = "") -> None:
    """Mark durably that the scheduler may have received the attempt.

    `by` identifies this submission: it is the lease's token. `task` names the native array and its task
    (:func:`ffdl_batch.domain.job.array.mark_of`); the tasks of earlier marks stay.
    """
    path = Path(attempt.submit_begun)
    try:
        earlier = read_head(str(path), MAX_TEXT_BYTES).decode("utf-8", "replace").splitlines(keepends=True)[1:]
    except NO_FILE:
        earlier = []
    write_text(path, "".join([f"begun {by}\n", *earlier, task]))


def begun_at(attempt: AttemptDir) -> float | None:
    """Return when the last submission began, in seconds since the epoch; None if there was none."""
    try:
        return Path(attempt.submit_begun).lstat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None


def unmark_begun(attempt: AttemptDir, by: str) -> None:
    """Remove the mark of the submission `by`, which the scheduler has provably not accepted.

    The mark of another submission stays: a daemon that was stopped during its submission may get the refusal long after
    another daemon has submitted the attempt.
    """
    mark = Path(attempt.submit_begun)
    if find_text(str(mark)).startswith(f"begun {by}\n"):
        mark.unlink(missing_ok=True)

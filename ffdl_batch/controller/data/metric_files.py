"""Put metrics beside a learner's log, so that they are stored with it, as FfDL's collectors did.

While the learner runs, its own directory is not changed, because the learner could truncate a file there. Until then
another directory has the records, and is uploaded to the same place in the store.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Optional

from ffdl_batch.attempt import reader
from ffdl_batch.attempt.directory_tree import Directories, Gone, remove_name, status_of
from ffdl_batch.attempt.file_writer import NEW
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.metrics.records import EMETRICS_FILE

RECORDS = "evaluation-metrics.txt"
"""FfDL's name of the file."""
_CHUNK = 1 << 20
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def show_metrics(launch: LaunchFile, learner_id: int, attempt: Optional[AttemptDir] = None) -> None:
    """Link the records of an ended learner into $LOG_DIR, unless it has such a file or writes the records itself.

    `attempt` may be an earlier attempt of the job. A failure is reported and ignored; then logs are stored without
    them.
    """
    attempt = attempt or AttemptDir(launch.attempt_dir)
    source, logs = attempt.learner_metrics(learner_id), attempt.learner_logs(learner_id)
    if not _are_collected(launch) or not os.path.isdir(logs):
        return
    try:
        _show(source, logs)
    except (OSError, DamagedFile, Gone) as error:
        sys.stderr.write(f"ffdl-controller: {source} is not stored with the log: {error}\n")


def show_growing(launch: LaunchFile, learner_id: int) -> str:
    """Return a directory with the records of a running learner; "" if there are none to store. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    source, place = attempt.learner_metrics(learner_id), attempt.staging(f"measured-{learner_id}")
    has_own = os.path.lexists(os.path.join(attempt.learner_logs(learner_id), RECORDS))
    if has_own or not _are_collected(launch) or reader.status_of(source) is None:
        return ""
    os.makedirs(place, mode=0o700, exist_ok=True)
    try:
        _show(source, place, grows=True)
    except (DamagedFile, Gone) as error:
        raise OSError(errno.ENOENT, str(error), source) from error
    return place


def _are_collected(launch: LaunchFile) -> bool:
    return launch.metrics is not None and launch.metrics.kind != EMETRICS_FILE


def _show(source: str, place: str, *, grows: bool = False) -> None:
    """Put the records into a directory. With `grows`, an older copy that is too short is replaced."""
    found = reader.status_of(source)
    if found is None:
        return
    with Directories(place) as tree:
        directory = tree.enter(())
        there = status_of(RECORDS, directory)
        if there is not None and (not grows or there.st_size == found.st_size):
            return
        try:
            os.link(source, RECORDS, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:  # another node's controller made it, or it is a copy
            if grows:
                _copy(source, directory)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(source, directory)


def _copy(source: str, directory: int) -> None:
    """Copy the records if the file system has no hard links. The copy appears when it is complete."""
    temporary = f".{RECORDS}.{os.uname().nodename}.{os.getpid()}"
    remove_name(temporary, directory)
    try:
        descriptor = os.open(temporary, NEW, 0o666, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as target, open_regular(source) as file:
            data = file.read(_CHUNK)
            while data:
                target.write(data)
                data = file.read(_CHUNK)
        os.replace(temporary, RECORDS, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        remove_name(temporary, directory)

"""Make the directories of an attempt before its learners start, and remove its scratch directories from nodes.

A node controller has a scratch directory on its node for files that no other node needs.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
import sys
from typing import Dict, List, Optional

from ffdl_batch.attempt.directory_tree import Directories, is_in, make_below, remove_tree
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.data.cache_entries import unlink_links
from ffdl_batch.controller.mounts.node_mounts import clear_left
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.host.permissions import umask_set, with_denial


class DirectoryRefused(OSError):
    """A directory cannot be made."""

    def __init__(self, code: str, message: str, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror, cause.filename)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message


def make_places(launch: LaunchFile) -> None:
    """Make the attempt's directories and those in the launch file. Raises DirectoryRefused."""
    attempt = AttemptDir(launch.attempt_dir)
    clear_left()
    unlink_links(launch)  # their targets may be on another node
    wanted = [attempt.state, attempt.model, attempt.data, attempt.results, attempt.logs, *_planned(launch)]
    for directory in wanted:
        try:
            if directory.startswith(attempt.state + os.sep):  # learners of an earlier run wrote there
                make_below(attempt.state, directory[len(attempt.state) :].split(os.sep)[1:])
            elif not is_in(directory, launch.job_dir):
                make_shared(directory, launch)
            else:
                os.makedirs(directory, exist_ok=True)
                if directory in (attempt.results, attempt.logs, launch.checkpoints):
                    Directories(directory, below=launch.job_dir).close()
        except OSError as error:
            # Outside the job's own directory is the user's data store. Inside it, only users and their learners can
            # replace a directory.
            is_ours = directory.startswith(launch.job_dir + os.sep) and error.errno not in (errno.EEXIST, errno.ENOTDIR)
            code = "S101" if is_ours else "C103"
            message = f"{directory} cannot be made on {os.uname().nodename}: {error.strerror}"
            raise DirectoryRefused(code, with_denial(message, error), error) from error


def make_shared(directory: str, launch: LaunchFile) -> None:
    """Make a directory outside the job's own, and those above it, as the submitter would. Raises OSError.

    New ones get the submitter's group, and pass it on (setgid), unless a directory above them does.
    """
    missing = [directory]
    while not os.path.lexists(os.path.dirname(missing[-1])):
        missing.append(os.path.dirname(missing[-1]))
    with umask_set(launch.umask):
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                _give_group(path, launch.gid)
        os.makedirs(directory, exist_ok=True)  # raises FileExistsError for a file


def _give_group(directory: str, gid: Optional[int]) -> None:
    found = os.stat(directory)
    if gid is None or gid == found.st_gid or found.st_mode & stat.S_ISGID:
        return
    with contextlib.suppress(PermissionError):  # the user is not a member of the group on this node
        os.chown(directory, -1, gid)
        os.chmod(directory, stat.S_IMODE(found.st_mode) | stat.S_ISGID)


def _planned(launch: LaunchFile) -> List[str]:
    values: Dict[str, str] = {"attempt_dir": launch.attempt_dir, "job_dir": launch.job_dir}
    made: List[str] = []
    for text in launch.make_dirs:
        for learner in range(1, launch.learners + 1):
            path = fill(text, {**values, "learner_id": str(learner)})
            if path not in made:
                made.append(path)
    return made


def scratch_of(launch: LaunchFile, node_rank: int) -> str:
    """Return the scratch directory. The controller removes it; see :func:`remove_scratch` if it was killed."""
    return os.path.join(launch.scratch_base, f"ffdl-{launch.token}-{node_rank}")


def scratch_of_earlier(launch: LaunchFile) -> List[str]:
    """Return the scratch directories of the job's earlier attempts on this node."""
    base = os.path.join(launch.scratch_base, f"ffdl-{launch.job_id}")
    return [left for number in range(1, launch.attempt) for left in glob.glob(f"{glob.escape(base)}-{number}-*")]


def remove_scratch(path: str) -> None:
    """Remove the scratch directory of a controller of this user that has ended. A failure is reported on standard
    error."""
    try:
        if os.lstat(path).st_uid == os.geteuid():
            remove_tree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {path} stays on {os.uname().nodename}: {error}\n")

"""The directory of an attempt's node controller on its node, for what no other node needs."""

from __future__ import annotations

import glob
import os
import sys

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.domain.launch.launch_file import LaunchFile


def scratch_of(launch: LaunchFile, node_rank: int) -> str:
    """The controller removes it when it ends; see :func:`remove_scratch` for one that is killed."""
    return os.path.join(launch.scratch_base, f"ffdl-{launch.token}-{node_rank}")


def scratch_of_earlier(launch: LaunchFile) -> "list[str]":
    """What is here of the job's attempts before this one."""
    base = os.path.join(launch.scratch_base, f"ffdl-{launch.job_id}")
    return [left for number in range(1, launch.attempt) for left in glob.glob(f"{glob.escape(base)}-{number}-*")]


def remove_scratch(path: str) -> None:
    """Remove the directory of a controller of this user that has ended. What cannot be removed stays, and is reported
    on standard error."""
    try:
        if os.lstat(path).st_uid == os.geteuid():
            remove_tree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {path} stays on {os.uname().nodename}: {error}\n")

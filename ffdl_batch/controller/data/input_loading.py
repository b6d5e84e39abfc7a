"""What a node loads before its learners start: the model, an earlier attempt's results, and copied data."""

from __future__ import annotations

import os
from typing import Callable, Optional, Sequence

from ffdl_batch.attempt.directory_tree import roots_of
from ffdl_batch.attempt.filesystem_retry import is_passing
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.model_unpacking import unpack
from ffdl_batch.controller.data.node_data import NodeData
from ffdl_batch.controller.data.tree_copy import copy_tree
from ffdl_batch.controller.own_program import machine_of
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.host.permissions import with_old_groups


def load_model(launch: LaunchFile, go_on: Callable[[], None]) -> None:
    """Unpack the model, copy what is carried over.

    Raises OSError, ModelRefused, PhaseFailed, and what `go_on` raises.
    """
    attempt = AttemptDir(launch.attempt_dir)
    if launch.model_archive:
        unpack(launch.model_archive, attempt.model)
    if launch.carry and os.path.isdir(launch.carry):
        try:  # a copy, no link: the earlier attempt's files stay what they are
            copy_tree(
                launch.carry,
                attempt.results,
                own=launch.job_dir,
                roots=roots_of(launch, launch.carry),
                go_on=go_on,
            )
        except OSError as error:
            if is_passing(error, attempt.path):
                raise
            where = f"{launch.carry} on {os.uname().nodename}"
            raise PhaseFailed(
                "S101", f"the earlier attempt's results cannot be copied from {where}: {error}"
            ) from error


def load_data(launch: LaunchFile, data: NodeData, go_on: Callable[[], None]) -> None:
    """Copy what is to be copied, and have what is in stores. Raises OSError, PhaseFailed, and what `go_on` raises."""
    _find(launch, launch.needs_dirs)
    for copy in launch.copies:
        copy_tree(copy.source, copy.target, roots=(copy.source,), go_on=go_on)
    data.have(go_on)


def find_data(launch: LaunchFile) -> None:
    """Every mounted data directory, and those of what was brought, or PhaseFailed: a container runtime would complain
    about itself instead.

    Raises OSError where their file system is gone.
    """
    _find(launch, [*launch.needs_dirs, *(fetch.local for fetch in launch.fetches)])


def _find(launch: LaunchFile, paths: Sequence[str]) -> None:
    for path in paths:
        denied: Optional[OSError] = None
        try:
            os.scandir(path).close()
            continue
        except FileNotFoundError:
            what = "does not exist"
        except NotADirectoryError:
            what = "is not a directory"
        except OSError as error:
            if is_passing(error, launch.attempt_dir):
                raise
            what, denied = f"cannot be read ({error.strerror})", error
        claimed = launch.pod.claimed(path) if launch.pod is not None else ""
        where = f" ({claimed})" if claimed else ""
        message = f"data directory {path}{where} {what} on node {machine_of(launch)}"
        raise PhaseFailed("S302", with_old_groups(message, denied))

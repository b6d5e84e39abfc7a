"""Puts results, logs and the model archive where they belong. Idempotent; nodes may do it at once."""

from __future__ import annotations

import os
from typing import Callable, Sequence

from ffdl_batch.controller.machine.directories import Directories
from ffdl_batch.controller.machine.files import touch
from ffdl_batch.controller.stores.model import copy_archive
from ffdl_batch.controller.stores.trees import copy_tree, remove_half_copied
from ffdl_batch.domain.jobdir import AttemptDir, JobDir
from ffdl_batch.domain.launch import LaunchFile

COPIED = ".log-copy-complete"
"""FfDL's mark in a stored log directory."""


def _on() -> None:
    """Nothing stands in the way of going on."""


def store_results(launch: LaunchFile, go_on: Callable[[], None] = _on, *, late: bool = False) -> None:
    """$RESULT_DIR into the results store, and the model archive beside it. Raises OSError, and what `go_on` raises.

    `late`: a newer attempt may have stored before us; what was written later than ours stays.
    """
    stores, attempt = launch.stores, AttemptDir(launch.attempt_dir)
    if stores.results and not _same(stores.results, attempt.results):
        copy_tree(attempt.results, stores.results, link=True, keep_newer=late, go_on=go_on)
    if stores.model and launch.model_archive and not os.path.exists(stores.model):
        copy_archive(launch.model_archive, stores.model)


def store_logs(
    launch: LaunchFile, learner_ids: Sequence[int], go_on: Callable[[], None] = _on, *, late: bool = False
) -> None:
    """The logs of these learners into ``learner-<n>/`` of the logs store. Raises OSError, and what `go_on` raises.

    Those of earlier attempts go below it, into ``attempt-<k>/``. `late`: a newer attempt's logs have the first place,
    and these go below it too.
    """
    attempt = AttemptDir(launch.attempt_dir)
    if not launch.stores.logs or _same(launch.stores.logs, attempt.logs):
        return
    for number in learner_ids:
        place = (f"learner-{number}",)  # results are stored there, too, and may have a link of that name
        for earlier in range(1, launch.attempt + (1 if late else 0)):
            source = JobDir(launch.job_dir).attempt(earlier).learner_logs(number)
            if os.path.isdir(source):
                copy_tree(source, launch.stores.logs, (*place, f"attempt-{earlier}"), link=True, go_on=go_on)
        if not late:
            copy_tree(attempt.learner_logs(number), launch.stores.logs, place, link=True, go_on=go_on)
        with Directories(launch.stores.logs, 0o777) as tree:
            touch(COPIED, dir_fd=tree.enter(place))


def clear_stores(launch: LaunchFile, is_dead: Callable[[str, int], bool]) -> None:
    """Remove from the stores what was being stored by whoever was killed over it. Raises OSError."""
    for place in {launch.stores.results, launch.stores.logs} - {""}:
        remove_half_copied(place, is_dead)


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)

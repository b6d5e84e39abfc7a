"""Puts results, logs and the model archive where they belong. Idempotent; nodes may do it at once."""

from __future__ import annotations

import os
from typing import Sequence

from ffdl_batch.controller.files import touch
from ffdl_batch.controller.model import copy_archive
from ffdl_batch.controller.trees import copy_tree
from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_batch.domain.launch import LaunchFile

COPIED = ".log-copy-complete"
"""FfDL's mark in a stored log directory."""


def store_results(launch: LaunchFile) -> None:
    """$RESULT_DIR into the results store, and the model archive beside it. Raises OSError."""
    stores, attempt = launch.stores, AttemptDir(launch.attempt_dir)
    if stores.results and not _same(stores.results, attempt.results):
        copy_tree(attempt.results, stores.results, link=True)
    if stores.model and launch.model_archive and not os.path.exists(stores.model):
        copy_archive(launch.model_archive, stores.model)


def store_logs(launch: LaunchFile, learner_ids: Sequence[int]) -> None:
    """The logs of these learners into ``learner-<n>/`` of the logs store. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    if not launch.stores.logs or _same(launch.stores.logs, attempt.logs):
        return
    for number in learner_ids:
        target = os.path.join(launch.stores.logs, f"learner-{number}")
        copy_tree(attempt.learner_logs(number), target, link=True)
        touch(os.path.join(target, COPIED))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)

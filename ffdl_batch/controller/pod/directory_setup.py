"""Make the directories that a pod's controllers expect, from the files that the pod was given."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import stat
from typing import List

from ffdl_batch.attempt.file_writer import read_text, rewrite_text, write_bytes, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.data.job_directories import make_places
from ffdl_batch.controller.learner.pod_exchange import SEAT, PodExchange
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import (
    ANNOTATIONS_DIR,
    BELL,
    HOSTS,
    MODEL_DIR,
    MODEL_TEXT,
    OUTPUT,
    PRIVATE_DIR,
    SHIM,
)
from ffdl_batch.host.fast_dataclass import dataclass

LAUNCH = "launch.json"
NODE_HOSTS = "/etc/hosts"
_PART = re.compile(r"model\.zip\.\d{3,}", re.ASCII)
_BLOCK = 1024**2


@dataclass(frozen=True)
class Given:
    """Directories of the pod with its files and with the daemon's requests."""

    plan: str
    """Has the launch file and the shim."""
    model: str = MODEL_DIR
    private: str = PRIVATE_DIR
    annotations: str = ANNOTATIONS_DIR


def lay_out(launch: LaunchFile, given: Given, index: int) -> None:
    """Make the job's tree for node `index`. Raises OSError."""
    attempt = AttemptDir(launch.attempt_dir)
    for directory in (launch.job_dir, attempt.path, attempt.events, attempt.logs):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    uploads = launch.pod is not None and launch.pod.uploads_pending
    for path in (attempt.secrets,) if uploads else (attempt.environment, attempt.secrets):
        source = os.path.join(given.private, os.path.basename(path))
        if os.path.exists(source):
            write_text(path, read_text(source))
    if uploads:  # the attempt has ended, and its tree exists
        return
    write_text(attempt.launch, read_text(os.path.join(given.plan, LAUNCH)))
    _join_model(launch, given.model)
    make_places(launch)
    for number in launch.learners_on(index)[:1]:
        _link(f"learner-{number}", os.path.join(attempt.logs, f"pod-{index}"))
        os.makedirs(attempt.learner_logs(number), exist_ok=True)


def make_pod(directory: str, plan: str) -> PodExchange:
    """Make the pod's own directory, if it does not exist. Raises OSError."""
    for name in ("doorbell", "scratch", SEAT):
        os.makedirs(os.path.join(directory, name), mode=0o700, exist_ok=True)
    seat = PodExchange(directory)
    for pipe in (OUTPUT, BELL):
        if not os.path.lexists(seat.file(pipe)):
            os.mkfifo(seat.file(pipe), 0o600)
    hosts = os.path.join(directory, HOSTS)
    if not os.path.exists(hosts):  # before the learner's container starts, which mounts this file
        rewrite_text(hosts, read_text(NODE_HOSTS))
    shim = os.path.join(plan, SHIM)
    if not os.path.exists(seat.file(SHIM)):
        write_text(seat.file(SHIM), read_text(shim))
    return seat


def _join_model(launch: LaunchFile, directory: str) -> None:
    archive = launch.model_archive
    parts = _parts(directory)
    if not archive.startswith(launch.job_dir + os.sep):
        return
    text = os.path.join(directory, MODEL_TEXT)
    if os.path.exists(text):
        write_bytes(archive, base64.b64decode(read_text(text)))
    if not parts:
        return
    whole = sum(os.stat(part).st_size for part in parts)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(archive).st_size == whole:
            return
    temporary = os.path.join(os.path.dirname(archive), f".{os.path.basename(archive)}.{os.urandom(4).hex()}")
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file, _BLOCK)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, archive)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _parts(directory: str) -> List[str]:
    try:
        names = [name for name in os.listdir(directory) if _PART.fullmatch(name)]
    except FileNotFoundError:
        return []
    paths = [os.path.join(directory, name) for name in sorted(names, key=lambda name: int(name.rpartition(".")[2]))]
    return [path for path in paths if stat.S_ISREG(os.stat(path).st_mode)]


def _link(target: str, path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.symlink(target, path)

"""What tests of the controller share: a launch file, what learners plant, and waiting."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ffdl_batch.domain.launch.launch_file import LaunchFile, LearnerCommand

LIMIT_S = 120.0


def launch_file(attempt_dir: str = "/j/a", **fields: Any) -> LaunchFile:
    """The first attempt of a job of one learner, but for `fields`."""
    plain = LaunchFile("training-7", 1, "training-7-1", "/j", attempt_dir, "/d", LearnerCommand(("x",), {}))
    return replace(plain, **fields)


def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {LIMIT_S:g} s: {what}"
        time.sleep(0.01)


def refusal(number: int) -> Callable[..., NoReturn]:
    """A function that fails with this errno."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


def plant_link(path: Path, target: Path) -> None:
    """A link to what the user has elsewhere."""
    path.symlink_to(target)


def plant_pipe(path: Path, target: Path) -> None:
    """A named pipe, which would block who opens it."""
    os.mkfifo(path)


def plant_socket(path: Path, target: Path) -> None:
    """A socket, which cannot be opened."""
    here = Path.cwd()
    os.chdir(path.parent)  # their paths are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)

"""Runs programs of the system from argv lists, with a minimal environment and a time limit.

Each failure is reported in one sentence.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Callable, Sequence

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The environment of all programs."""
_SAID_MOST = 1000


class Trouble(Exception):
    """A fault of this node, and what an operator can do about it."""


def is_installed(program: str) -> bool:
    """Return whether `run` would find the program."""
    return shutil.which(program, path=ENVIRONMENT["PATH"]) is not None


def run(argv: Sequence[str], timeout_s: float, text: str | None = None) -> str:
    """Run a program and return its output. `text` is its standard input. Raises Trouble if its exit status is not 0."""
    try:
        done = subprocess.run(
            argv,
            env=ENVIRONMENT,
            input=text or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            close_fds=False,  # so that it inherits the lock of locks.held; no other descriptor is inheritable
            check=False,
        )
    except FileNotFoundError as error:
        raise Trouble(f"the program {argv[0]} is not installed on this node (PATH {ENVIRONMENT['PATH']})") from error
    except OSError as error:
        raise Trouble(f"{' '.join(argv)} cannot be started on this node: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Trouble(f"{' '.join(argv)} did not end within {timeout_s:g} s") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout)[:_SAID_MOST].split())
        raise Trouble(f"{' '.join(argv)} ended with {done.returncode}: {said}")
    return done.stdout


def status_of(program: str, work: Callable[[], int]) -> int:
    """Return the status of `work`. If it raises, print one sentence on standard error and return 1."""
    try:
        return work()
    except (Trouble, OSError, ValueError) as error:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1

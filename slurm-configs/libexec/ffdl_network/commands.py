"""Runs the system's programs: argv lists, a bare environment, a limit of time. A failure is one sentence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Callable, Sequence

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""What programs are started with."""
_SAID_MOST = 1000


class Trouble(Exception):
    """What is wrong on this node, and what an operator can do about it."""


def is_installed(program: str) -> bool:
    """Whether `run` would find it."""
    return shutil.which(program, path=ENVIRONMENT["PATH"]) is not None


def run(argv: Sequence[str], timeout_s: float, text: str | None = None) -> str:
    """The output of a program that ended with 0; `text` is its standard input."""
    try:
        done = subprocess.run(
            argv,
            env=ENVIRONMENT,
            input=text or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            close_fds=False,  # what is not to be inherited says so; that of locks.held is
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
    """What `work` ends with; 1 and one sentence on standard error for what it cannot go on with."""
    try:
        return work()
    except (Trouble, OSError, ValueError) as error:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1

"""Programs that a test run starts: where, what they used of a core, and the line that says what runs."""

# ruff: noqa: T201 - it prints for a command line program
from __future__ import annotations

import compileall
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "tests"
IMPORTED = ("ffdl_batch", "adapters", "tests")
_RUNNING: set[int] = set()
_TEST_FILES = re.compile(r"/(test_\w+|conftest)\.py$")  # pytest compiles them in its own way


def compile_sources(root: Path = ROOT) -> None:
    """Compile what programs under test import. There are thousands of them, and each would compile it for itself where
    PYTHONDONTWRITEBYTECODE is set, as images with Python do: a fifth of a second of a core for a controller."""
    for folder in IMPORTED:
        compileall.compile_dir(root / folder, quiet=1, rx=_TEST_FILES, workers=0)


def prefer_interpreter() -> None:
    """Let `python3` of the programs under test be the interpreter itself, which this environment was made from. A
    version manager has a script of that name on the PATH, and its start costs ten times as much."""
    own = str(Path(sys.base_prefix) / "bin")
    known = os.environ.get("PATH", os.defpath)
    if own not in known.split(os.pathsep):
        os.environ["PATH"] = f"{own}{os.pathsep}{known}"


def call(argv: Sequence[str], output: IO[bytes] | None = None) -> tuple[int, float]:
    """Run it to its end: exit status, and the seconds of a core that it and what it waited for used."""
    process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output)
    _RUNNING.add(process.pid)
    _, status, used = os.wait4(process.pid, 0)
    _RUNNING.discard(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def end_on_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does, with what :func:`call` runs."""

    def end(number: int, frame: FrameType | None) -> None:
        for pid in tuple(_RUNNING):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, end)


def say(text: str) -> None:
    """One line of progress."""
    print(f"==> {text}", flush=True)

"""Programs that a test run starts: where, what they used of a core, and the line that says what runs."""

# ruff: noqa: T201 - it prints for a command line program
from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "tests"


def call(argv: list[str], output: IO[bytes] | None = None) -> tuple[int, float]:
    """Run it to its end: exit status, and the seconds of a core that it and what it waited for used."""
    process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=output)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def say(text: str) -> None:
    """One line of progress."""
    print(f"==> {text}", flush=True)

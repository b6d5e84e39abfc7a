"""Runs programs of this machine. Every host command of the rig goes through `run`: argv lists, never a shell line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import RigError

_TAIL_LINES = 12


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    input_text: str | None = None,
    timeout_s: float = 180.0,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run to the end and return the output; a failure that is not allowed becomes a RigError with the last lines."""
    try:
        done = subprocess.run(
            list(argv),
            env=dict(env) if env is not None else None,
            input=input_text,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL if input_text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as error:
        raise RigError(f"the program {argv[0]} is missing on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise RigError(f"{' '.join(argv)} did not end within {timeout_s:.0f} s") from error
    if check and done.returncode != 0:
        raise RigError(f"{' '.join(argv)} ended with {done.returncode}: {tail(done.stderr or done.stdout)}")
    return done


def run_logged(argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, timeout_s: float) -> None:
    """Run a long build step with its output appended to `log`; the error names the log and shows its end.

    The process is killed with us (PR_SET_PDEATHSIG by setpriv): a killed build must not go on writing into a
    directory that the next build already deletes.
    """
    with log.open("ab") as sink:
        try:
            done = subprocess.run(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RigError(f"{argv[0]} did not end within {timeout_s:.0f} s; its output is in {log}") from error
    if done.returncode != 0:
        raise RigError(f"{argv[0]} ended with {done.returncode}; its output is in {log} and ends: {tail_of(log)}")


def tail(text: str) -> str:
    """The last lines of an output, for a message."""
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


def tail_of(log: Path) -> str:
    """The last lines of a log file, "" when there is none."""
    try:
        return tail(log.read_text(errors="replace"))
    except OSError:
        return ""


def bare_environment(**extra: str) -> dict[str, str]:
    """An environment without anything of the caller's, for programs of the rig that must not inherit it."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **extra}


def proxy_environment() -> dict[str, str]:
    """The proxy variables of the caller; builds need the network the way this machine reaches it."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    wanted = {*names, *(name.upper() for name in names)}
    return {name: value for name, value in os.environ.items() if name in wanted}

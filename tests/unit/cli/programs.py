"""Runs the real programs as processes against a fake daemon."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

from tests import preloaded
from tests.preloaded import FFDL, FFDL_ADMIN, FFDL_SUBMIT
from tests.unit.client.fake_daemon import FakeDaemon

__all__ = ["FFDL", "FFDL_ADMIN", "FFDL_SUBMIT", "environment", "json_lines", "on_terminal", "run"]


def environment(daemon: FakeDaemon | None, extra: dict[str, str] | None = None) -> dict[str, str]:
    """A shell's environment without this machine's configuration; no daemon is ever started for real."""
    socket = str(daemon.path) if daemon else "/dev/null/none/ffdl.sock"
    home = str(daemon.path.parent) if daemon else "/dev/null/none"
    base = {"PATH": os.environ["PATH"], "HOME": home, "FFDL_SOCKET": socket, "XDG_CONFIG_HOME": "/dev/null/none"}
    return base | {"FFDL_STATE_DIR": f"{home}/state", "PYTHONWARNINGS": "error"} | (extra or {})


def run(
    program: tuple[str, ...],
    *arguments: str | Path,
    daemon: FakeDaemon | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    text: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """One run to its end."""
    start = preloaded.run if program in (FFDL, FFDL_ADMIN, FFDL_SUBMIT) else subprocess.run
    return start(
        [*program, *map(str, arguments)], capture_output=True, text=True, env=environment(daemon, env),
        cwd=cwd or Path(__file__).parents[3], input=text, timeout=300, check=False,
    )  # fmt: skip


def on_terminal(program: tuple[str, ...], *arguments: str | Path, daemon: FakeDaemon, **env: str) -> str:
    """Return everything that a command shows on a terminal."""
    terminal, held = pty.openpty()
    with preloaded.Popen(
        [*program, *map(str, arguments)], env=environment(daemon, env), stdin=subprocess.DEVNULL, stdout=held,
        stderr=held,
    ):  # fmt: skip
        os.close(held)
        shown = b""
        while data := _read(terminal):
            shown += data
    os.close(terminal)
    return shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: the command has ended (pty(7))
        return b""


def json_lines(text: str) -> list[dict[str, Any]]:
    """Standard output of --json; every document carries the schema."""
    documents = [json.loads(line) for line in text.splitlines()]
    assert all(document["schema"] == 1 for document in documents)
    return documents

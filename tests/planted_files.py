"""Creates what a user can put in place of a file that the platform reads."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

Plant = Callable[[Path], object]


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _link(path: Path) -> None:
    """Make a link to a file of the test, because a learner may write through its own link and tests run as root."""
    target = path.parent / ".elsewhere"
    target.write_text("{}\n", encoding="utf-8")
    path.symlink_to(target)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


NO_FILES: Mapping[str, Plant] = {
    "directory": Path.mkdir,
    "named pipe": os.mkfifo,
    "socket": _socket,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a file": _link,
    "link to itself": lambda path: path.symlink_to(path),
}
"""Entries that are not regular files."""
NO_JSON: Mapping[str, Plant] = {
    "nested": lambda path: path.write_bytes(b'{"at":' + b"[" * 50_000 + b"\n"),
    "huge integer": lambda path: path.write_bytes(b'{"at":' + b"9" * 400 + b"}\n"),
    "infinite number": lambda path: path.write_bytes(b'{"at":1e400}\n'),
    "NaN": lambda path: path.write_bytes(b'{"at":NaN}\n'),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00{"),
    "empty": Path.touch,
    "list": lambda path: path.write_bytes(b"[1]\n"),
    "sparse": _sparse,
}
"""Regular files that do not have a JSON object."""


def replace(path: Path, plant: Plant) -> None:
    """Put something in place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    plant(path)

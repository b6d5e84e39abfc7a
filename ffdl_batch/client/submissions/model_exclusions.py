"""Decide which files of a model directory are not sent: the file ``.ffdlignore``, with git's syntax, and defaults.

Only the file in the model directory itself counts. pathspec is imported only if that file exists, because most
submissions have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ffdl_batch.attempt.reader import DamagedFile, open_regular
from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.domain.exit_codes import ExitCode

IGNORE_FILE = ".ffdlignore"
DEFAULT_NAMES = ("venv", ".venv", ".git", "__pycache__")
"""Left out at every level, unless a later line of the file includes them again, as ``!venv``."""
_MOST_BYTES = 1 << 20

IsLeftOut = Callable[[str], bool]
"""Returns whether the path of a file, relative to the model, is not sent; paths of directories end with a slash."""


def read_exclusions(root: Path) -> IsLeftOut:
    """Return what decides for the model in `root`. Raises :class:`InputUnusable`."""
    path = root / IGNORE_FILE
    try:
        with open_regular(str(path)) as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        return _is_default
    except (OSError, DamagedFile, UnicodeDecodeError) as error:
        raise _unusable(path, str(getattr(error, "strerror", None) or error)) from error
    if len(raw) > _MOST_BYTES:
        raise _unusable(path, f"it has more than {_MOST_BYTES} bytes")
    return _compiled(path, text)


def _is_default(path: str) -> bool:
    return path.rstrip("/").rpartition("/")[2] in DEFAULT_NAMES


def _compiled(path: Path, text: str) -> IsLeftOut:
    from pathspec import GitIgnoreSpec

    lines = [line.rstrip("\r") for line in text.split("\n")]
    for number, line in enumerate(lines, 1):
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error) as error:
            raise _unusable(path, f"line {number} is not a pattern of gitignore: {error}") from error
    return GitIgnoreSpec.from_lines([*DEFAULT_NAMES, *lines]).match_file


def _unusable(path: Path, why: str) -> InputUnusable:
    return InputUnusable(f"{path}: {why}", cure="correct it, or remove it", exit_code=ExitCode.BAD_MANIFEST)

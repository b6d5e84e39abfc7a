"""What is kept beside a SQLite database, found by its name."""

from __future__ import annotations

import os
import re
from pathlib import Path


def rescued_copies(path: Path) -> list[Path]:
    """What daemons saved of the database `path` when it was deleted under them, newest first. Raises OSError."""
    return _stamped(path, "rescued")


def kept_copies(path: Path) -> list[Path]:
    """Those, and what was there before something else was put in its place, newest first. Raises OSError."""
    return _stamped(path, "rescued|replaced")


def _stamped(path: Path, kinds: str) -> list[Path]:
    form = re.compile(rf"{re.escape(path.name)}\.(?:{kinds})-(\d{{8}}T\d{{6}}Z(?:\.\d+)?)", re.ASCII)
    places = {path.parent, Path(os.path.realpath(path)).parent}
    names = (one for place in places if place.is_dir() for one in place.iterdir())
    found = [(match[1], one) for one in names if (match := form.fullmatch(one.name))]
    return [one for _, one in sorted(found, reverse=True)]

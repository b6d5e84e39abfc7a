"""Files that seem to belong to other users and groups, which only root could give away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def belongs_to(monkeypatch: pytest.MonkeyPatch, place: Path, uid: int, gid: int, mode: int) -> None:
    """Let stat(2) of the path report this owner, group and mode."""
    look = os.stat

    def stat_of(path: Any, *args: Any, **how: Any) -> os.stat_result:
        found = look(path, *args, **how)
        if path != str(place):
            return found
        kind = found.st_mode & ~0o7777
        return os.stat_result((kind | mode, found.st_ino, found.st_dev, found.st_nlink, uid, gid, *found[6:10]))

    monkeypatch.setattr(os, "stat", stat_of)

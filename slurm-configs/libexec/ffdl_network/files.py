"""Writes files atomically."""

from __future__ import annotations

import os
from pathlib import Path


def publish(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, by default readable for all users."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)

"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def publish(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file; for everybody to read, where nothing else is said."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(mode)
    new.replace(path)

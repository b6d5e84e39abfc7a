"""The build cache: directories that are complete or absent, named by a hash of everything they are made from.

A layer is built under a temporary name and renamed when it is finished, under a lock that a second builder waits for.
So an interrupted build is never taken for a finished one, and a changed recipe never meets an old result.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .console import step


def digest(*parts: str | Sequence[str]) -> str:
    """A short hash of the recipe; lists and strings that only differ in where they split give different hashes."""
    text = json.dumps([part if isinstance(part, str) else list(part) for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Layer:
    """A finished layer: its directory and its key, which later layers put into theirs."""

    path: Path
    key: str


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def obtain(cache: Path, name: str, key: str, build: Callable[[Path, Path], None]) -> Layer:
    """Return the layer `name-key`, calling `build(directory, log)` if it is not there yet.

    Older layers of the same name stay: another checkout may use them; `drop` removes one.
    """
    path = cache / f"{name}-{key}"
    if path.is_dir():
        return Layer(path, key)
    with locked(cache / f"{name}.lock"):
        if not path.is_dir():
            unfinished = cache / f"{name}-{key}.building"
            _remove(unfinished)
            unfinished.mkdir(parents=True)
            log = cache / f"{name}-{key}.log"
            log.write_bytes(b"")
            with step(f"built {path.name}"):
                build(unfinished, log)
            unfinished.rename(path)
    return Layer(path, key)


def drop(layer: Path) -> None:
    """Forget a layer so that it is built again. Renamed first, so that a half-deleted one is never used."""
    if layer.is_dir():
        doomed = layer.with_name(f"{layer.name}.doomed")
        _remove(doomed)
        layer.rename(doomed)
        _remove(doomed)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)

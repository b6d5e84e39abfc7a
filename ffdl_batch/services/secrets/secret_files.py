"""A user's named secrets: one file of mode 0600 each, in a directory that nobody else can enter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ffdl_batch.attempt.layout import Root
from ffdl_batch.attempt.reader import MAX_TEXT_BYTES, DamagedFile, read_whole
from ffdl_batch.domain.job.secret_references import why_no_name
from ffdl_batch.services.whole_files import sync_directory, write_whole


@dataclass(frozen=True, slots=True)
class Kept:
    """A secret that is there, and when its value was set, by the file system's clock."""

    name: str
    set_at: float


def keep_secret(root: Root, name: str, value: str) -> None:
    """Set its value anew, durably: readers find the old one or the new. Raises OSError."""
    _named(name)
    directory = Path(root.secrets)
    directory.mkdir(mode=0o700, exist_ok=True)
    write_whole(directory / name, value, durable=True)


def read_secret(root: Root, name: str) -> str | None:
    """Its value; None where there is none. Raises OSError."""
    if why_no_name(name):
        return None
    try:
        return read_whole(str(Path(root.secrets) / name), MAX_TEXT_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        raise OSError(str(error)) from None


def drop_secret(root: Root, name: str) -> bool:
    """Remove it, durably; whether it was there. Raises OSError."""
    _named(name)
    try:
        (Path(root.secrets) / name).unlink()
    except FileNotFoundError:
        return False
    sync_directory(Path(root.secrets))
    return True


def kept_secrets(root: Root) -> list[Kept]:
    """All of them, by name. Raises OSError."""
    return sorted(_kept(Path(root.secrets)), key=lambda one: one.name)


def _kept(directory: Path) -> Iterator[Kept]:
    for path in directory.iterdir() if directory.is_dir() else ():
        if not why_no_name(path.name):
            try:
                yield Kept(path.name, path.stat().st_mtime)
            except FileNotFoundError:  # it was removed meanwhile
                continue


def _named(name: str) -> None:
    """A name becomes a path only where it is one: callers have refused others before."""
    if why_no_name(name):
        raise ValueError("this is no secret's name")

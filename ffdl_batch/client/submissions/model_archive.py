"""Pack a model directory, or open a zip archive, for the upload, and compute its digest.

The zip of a directory depends only on its files: names are sorted, times are fixed, owners are left out, execute bits
are kept, and nothing is compressed (the socket is local, and zlib's output differs between versions). So an unchanged
model always has the same digest and is uploaded once. :mod:`ffdl_batch.client.submissions.model_exclusions` decides
which files are left out.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import IO

from ffdl_batch.attempt.model_archive import MAX_DEPTH, ArchiveError, ModelArchive
from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.client.submissions.model_exclusions import IGNORE_FILE, IsLeftOut, read_exclusions
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import size_text
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold."""
_BLOCK = 1 << 20
_IN_MEMORY = 8 << 20
_UNIX = 3
_ZIP64_FROM = 1 << 31
LARGE_BYTES = 50 * 1000**2
"""A model above this size gets a warning."""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Archive:
    """An open zip."""

    file: IO[bytes]
    """The file, at any position."""
    digest: str
    """Its SHA-256 in hex."""
    size: int
    """Its size in bytes."""
    left_out: tuple[str, ...] = ()
    """Files and directories of the model that are not sent, relative to it."""
    largest: tuple[tuple[str, int], ...] = ()
    """The largest entries of the model directory that are sent, and their bytes."""

    def describe(self) -> str:
        """Return the size, the digest, and what is left out."""
        more = f", and {len(self.left_out) - _NAMED} more" if len(self.left_out) > _NAMED else ""
        left_out = f"; left out: {', '.join(map(quoted, self.left_out[:_NAMED]))}{more}" if self.left_out else ""
        return f"{size_text(self.size)}, sha256 {self.digest}{left_out}"

    def warning(self, model: str | Path) -> str:
        """Return a warning if the archive is large, else ""."""
        if self.size <= LARGE_BYTES:
            return ""
        named = ", ".join(f"{quoted(name)} {size_text(size)}" for name, size in self.largest[:_NAMED])
        largest = f" (the largest: {named})" if named else ""
        return (
            f"model {model} has {size_text(self.size)}{largest}, and each job unpacks them: list what the job does not "
            f"need in {IGNORE_FILE}, and put data into a data store"
        )


@dataclass(slots=True)
class _Content:
    """What a model directory has."""

    is_left_out: IsLeftOut
    left_out: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes that are sent, by the entry of the model directory."""

    def leaves_out(self, path: str) -> bool:
        """Return whether a path is not sent, and note it."""
        if not self.is_left_out(path):
            return False
        self.left_out.append(path)
        return True

    def add(self, path: str, size: int) -> None:
        """Count a file that is sent."""
        top, below, _ = path.partition("/")
        self.sizes[top + below] = self.sizes.get(top + below, 0) + size

    @property
    def largest(self) -> tuple[tuple[str, int], ...]:
        """The entries by their size, the largest first."""
        return tuple(sorted(self.sizes.items(), key=lambda one: (-one[1], one[0])))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A member of the zip."""

    name: str
    source: Path | None
    """The real path of the file; None for an empty directory."""
    shown: Path
    """The path for messages."""


@contextmanager
def open_model(path: Path) -> Iterator[Archive]:
    """Open the archive of the model at `path`. Raises :class:`InputUnusable` (exit 66 or 78)."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputUnusable(
            f"model {path}: {_reason(error)}", cure="name the model's directory or zip archive"
        ) from error
    if stat.S_ISDIR(mode):
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="ffdl-model-") as packed:
            content = pack_directory(path, packed)
            yield replace(_describe(packed), left_out=tuple(content.left_out), largest=content.largest)
    elif stat.S_ISREG(mode):
        with _open_zip(path) as file:
            yield _describe(file)
    else:
        raise InputUnusable(f"model {path} is neither a directory nor a zip archive")


def pack_directory(root: Path, target: IO[bytes]) -> _Content:
    """Write the zip of the tree below `root`, and return what it has. Raises :class:`InputUnusable`.

    Symbolic links within the tree are followed. Links out of the tree are refused, because their targets may differ on
    the node.
    """
    real_root = root.resolve()
    content = _Content(read_exclusions(real_root))
    entries = sorted(_walk(real_root, real_root, root, "", content), key=lambda entry: entry.name)
    if not any(entry.source is not None for entry in entries):
        besides = f" besides those that are left out ({IGNORE_FILE})" if content.left_out else ""
        raise InputUnusable(
            f"model {root} holds no file{besides}",
            cure="name the directory with the code",
            exit_code=ExitCode.BAD_MANIFEST,
        )
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as packed:
            for entry in entries:
                content.add(entry.name, _add(packed, entry))
    except OSError as error:
        raise InputUnusable(
            f"model {root} cannot be packed: {_reason(error)}", cure="is there space in the temporary directory?"
        ) from error
    return content


def _walk(
    directory: Path, root: Path, shown: Path, prefix: str, content: _Content, open_dirs: tuple[Path, ...] = ()
) -> Iterator[_Entry]:
    """Yield the entries below `directory`. `open_dirs` are the directories around it."""
    if directory in open_dirs or len(open_dirs) >= MAX_DEPTH:
        raise InputUnusable(f"model: {shown} leads back to itself or is nested too deep", exit_code=78)
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208  (names, not paths)
    except OSError as error:
        raise InputUnusable(f"model: {shown}: {_reason(error)}") from error
    if not names and prefix:
        yield _Entry(prefix, None, shown)
    for name in names:
        if content.leaves_out(prefix + name + ("/" if (directory / name).is_dir() else "")):
            continue
        _check_name(name, shown)
        path = _resolve(directory / name, root, shown / name)
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(path, root, shown / name, f"{prefix}{name}/", content, (*open_dirs, directory))
        elif stat.S_ISREG(mode):
            yield _Entry(prefix + name, path, shown / name)
        else:
            raise InputUnusable(
                f"model: {shown / name} is a {_kind(mode)}; only files and directories can be sent", exit_code=78
            )


def _resolve(path: Path, root: Path, shown: Path) -> Path:
    if not path.is_symlink():
        return path
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InputUnusable(f"model: the symbolic link {shown} leads nowhere", cure="remove it") from error
    if not real.is_relative_to(root):
        raise InputUnusable(
            f"model: the symbolic link {shown} leaves the model's directory (to {real})",
            cure="copy the file, or name it as a data store",
            exit_code=ExitCode.BAD_MANIFEST,
        )
    return real


def _check_name(name: str, shown: Path) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputUnusable(
            f"model: a name in {quoted(str(shown))} is not UTF-8: {quoted(name)}",
            cure="rename the file",
            exit_code=78,
        ) from error


def _add(packed: zipfile.ZipFile, entry: _Entry) -> int:
    """Write an entry, and return the bytes of its file."""
    info = zipfile.ZipInfo(entry.name, _EPOCH)
    info.create_system = _UNIX
    if entry.source is None:
        info.external_attr = ((stat.S_IFDIR | 0o755) << 16) | 0x10  # 0x10: a directory in MS-DOS's attributes
        packed.writestr(info, b"")
        return 0
    with _open_regular(entry) as source:
        found = os.fstat(source.fileno())
        mode = 0o755 if found.st_mode & 0o111 else 0o644
        info.external_attr = (stat.S_IFREG | mode) << 16
        info.file_size = found.st_size
        with packed.open(info, "w", force_zip64=found.st_size >= _ZIP64_FROM) as member:
            while block := source.read(_BLOCK):
                member.write(block)
    return info.file_size


def _open_regular(entry: _Entry) -> IO[bytes]:
    """Open the file. It may have been replaced meanwhile by a link or a pipe, so links are not followed."""
    source = entry.source
    assert source is not None
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputUnusable(f"model: {entry.shown}: {_reason(error)}", cure="make it readable") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputUnusable(f"model: {entry.shown} changed while it was packed", cure="submit again")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _open_zip(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputUnusable(f"model {path}: {_reason(error)}", cure="make it readable") from error
    with file:
        try:
            ModelArchive(file, f"model {path}").check_content()
        except ArchiveError as error:
            raise InputUnusable(error.message, cure=error.cure, exit_code=ExitCode.BAD_MANIFEST) from error
        except OSError as error:
            raise InputUnusable(f"model {path}: {_reason(error)}", cure="make it readable") from error
        yield file


def _describe(file: IO[bytes]) -> Archive:
    digest = hashlib.sha256()
    size = 0
    file.seek(0)
    while block := file.read(_BLOCK):
        digest.update(block)
        size += len(block)
    return Archive(file, digest.hexdigest(), size)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISSOCK, "socket"), (stat.S_ISFIFO, "named pipe"), (stat.S_ISBLK, "block device"))
    return next((name for test, name in kinds if test(mode)), "character device")


def _reason(error: OSError) -> str:
    return (
        "there is no such file or directory" if isinstance(error, FileNotFoundError) else str(error.strerror or error)
    )

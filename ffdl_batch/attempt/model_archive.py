"""Checks and reads model archives: zip files that a user made and that nodes unpack.

The same code checks an archive when it is submitted and when a node unpacks it. So a node refuses no archive that the
submission accepted. Standard library; runs on Python 3.9.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from typing import IO, Dict, Iterator, List, Tuple

from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.host.fast_dataclass import dataclass

MAX_UNPACKED_BYTES = 20 * 1000**3
MAX_ENTRIES = 200_000
MAX_RATIO = 200
"""Maximum ratio of unpacked to packed size if the archive unpacks to more than RATIO_FLOOR_BYTES. Text rarely exceeds
20."""
RATIO_FLOOR_BYTES = 64 * 1000**2
MAX_COMPONENT_BYTES = 255
"""Maximum length of a file name: NAME_MAX of Linux's file systems."""
MAX_NAME_BYTES = 2048
"""Maximum length of a path: half of Linux's PATH_MAX. The other half is for the directory in which the archive is
unpacked."""
MAX_DEPTH = 100
"""Maximum depth of nested directories."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The two methods that ISO/IEC 21320-1 allows. A node's Python may lack the modules bz2 and lzma."""
_METHOD_NAMES = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ", 98: "PPMd"}
_ENCRYPTED = 0x1 | 0x40 | 0x2000
"""Bits of the general purpose flag: encrypted, strongly encrypted, directory encrypted (APPNOTE.TXT 4.4.4)."""
_UNIX = 3
_HEADER_BYTES = 30
"""The fixed part of a local file header, without name and extra field."""
_DRIVE = re.compile("[A-Za-z]:")
_BLOCK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError)
"""Errors that zipfile raises for a damaged archive. OSError is not among them: it means that the file could not be
read."""

_END, _END64, _LOCATOR = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_END_BYTES, _END64_BYTES, _LOCATOR_BYTES = 22, 56, 20
_MAX_COMMENT_BYTES = 0xFFFF
_COUNT_IS_IN_END64 = 0xFFFF
_COUNT_MODULUS = 1 << 16
"""An end record without Zip64 has the number of entries modulo this number."""

ZIP_AGAIN = "zip the model's files again, or name their directory"


class ArchiveError(ValueError):
    """The archive is damaged, or has an entry that cannot be unpacked. `cure` is advice to the user."""

    def __init__(self, message: str, cure: str = ZIP_AGAIN) -> None:
        super().__init__(message)
        self.message, self.cure = message, cure

    def __str__(self) -> str:
        return f"{self.message} ({self.cure})"


@dataclass(frozen=True)
class Member:
    """An entry of an archive. `parts` has the names of the directories and of the file; () is the model's directory
    itself."""

    info: zipfile.ZipInfo
    parts: Tuple[str, ...]
    is_directory: bool

    @property
    def mode(self) -> int:
        """Permission bits, without setuid, setgid and sticky; 0 if the archive has none."""
        return (self.info.external_attr >> 16) & 0o777


class ModelArchive:
    """An open archive. `members` are in the order of the archive. Their names and sizes are checked."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        """Check the directory of the archive. `name` is used in messages. Raises ArchiveError, OSError."""
        self._name = name
        try:
            self._zip = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise ArchiveError(f"{name} is not a readable zip file: {error}") from error
        packed = max(1, file.seek(0, os.SEEK_END))
        entries = self._zip.infolist()
        self._check_count(len(entries))
        recorded = _recorded_count(file)
        if recorded not in (len(entries), len(entries) % _COUNT_MODULUS):
            raise ArchiveError(f"{name} has {len(entries)} entries, but {recorded} in its end record")
        self.members = [self._member(info) for info in entries]
        if all(member.is_directory for member in self.members):
            raise ArchiveError(f"{name} has no files", "put the model's code into it")
        self._check_sizes(packed, sum(info.file_size for info in entries))
        self._check_tree()
        self._check_places(entries)

    def check_content(self) -> None:
        """Read every entry. Raises ArchiveError for one that is damaged, OSError."""
        for member in self.members:
            for _ in self.read(member):
                pass

    def read(self, member: Member) -> Iterator[bytes]:
        """Yield the bytes of an entry in blocks. Raises ArchiveError if it is damaged, OSError."""
        left = member.info.file_size
        try:
            with self.open(member) as source:
                while block := source.read(_BLOCK):
                    left -= len(block)
                    yield block
            if left:
                raise EOFError(f"{left} bytes are missing")
        except _DAMAGE as error:
            raise self._refusal(member.info, f"is damaged: {str(error) or 'it ends too early'}") from error

    def open(self, member: Member) -> IO[bytes]:
        """Open an entry whose content has been checked. Raises OSError."""
        return self._zip.open(member.info)

    def _refusal(self, info: zipfile.ZipInfo, why: str, cure: str = ZIP_AGAIN) -> ArchiveError:
        return ArchiveError(f"entry {quoted(info.orig_filename)} of {self._name} {why}", cure)

    def _member(self, info: zipfile.ZipInfo) -> Member:
        kind = stat.S_IFMT(info.external_attr >> 16)
        name = info.filename.replace("\\", "/")
        if "\0" in info.orig_filename:
            raise self._refusal(info, "has a NUL character in its name")
        if name.startswith("/") or ".." in name.split("/") or _DRIVE.match(name):
            raise self._refusal(info, "points outside the archive", "zip the model's directory with relative names")
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise self._refusal(info, "is neither a file nor a directory", "replace links by the files they lead to")
        if info.flag_bits & _ENCRYPTED:
            raise self._refusal(info, "is encrypted", "zip the model without a password")
        if info.compress_type not in _METHODS:
            method = _METHOD_NAMES.get(info.compress_type, f"method {info.compress_type}")
            raise self._refusal(info, f"is compressed with {method}", "zip the model with the method deflate")
        if kind and info.create_system == _UNIX:
            name = info.filename  # a backslash separates directories on Windows, but is part of a name on Unix
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        self._check_length(info, parts)
        is_directory = name.endswith("/") or kind == stat.S_IFDIR
        if is_directory and info.file_size:
            raise self._refusal(info, "is a directory with content")
        if not (parts or is_directory):
            raise self._refusal(info, "is a file with an empty name")
        return Member(info, parts, is_directory)

    def _check_length(self, info: zipfile.ZipInfo, parts: Tuple[str, ...]) -> None:
        sizes = [len(os.fsencode(part)) for part in parts]
        if max(sizes, default=0) > MAX_COMPONENT_BYTES or sum(sizes) + len(sizes) > MAX_NAME_BYTES:
            limits = f"{MAX_COMPONENT_BYTES} bytes between two slashes and {MAX_NAME_BYTES} in all are allowed"
            raise self._refusal(info, f"has a name that is too long; {limits}", "rename it")
        if len(parts) > MAX_DEPTH:
            raise self._refusal(info, f"is nested too deeply; the maximum is {MAX_DEPTH} directories", "move it up")

    def _check_tree(self) -> None:
        """Refuse two files with the same name, and a name that is both a file and a directory."""
        files: Dict[Tuple[str, ...], Member] = {}
        directories: Dict[Tuple[str, ...], Member] = {(): self.members[0]}
        for member in self.members:
            if not member.is_directory:
                if member.parts in files:
                    raise self._refusal(member.info, "exists twice")
                files[member.parts] = member
            above = member.parts if member.is_directory else member.parts[:-1]
            while above not in directories:
                directories[above] = member
                above = above[:-1]
            self._check_count(len(files) + len(directories))
        for parts in files.keys() & directories.keys():
            both = f"{quoted('/'.join(parts))} is a file of {self._name}, and a directory"
            raise ArchiveError(f"{both} ({quoted('/'.join(directories[parts].parts))})")

    def _check_sizes(self, packed: int, unpacked: int) -> None:
        ratio = unpacked / packed
        if unpacked > MAX_UNPACKED_BYTES:
            limit = f"the maximum is {MAX_UNPACKED_BYTES // 1000**3} GB"
        elif unpacked > RATIO_FLOOR_BYTES and ratio > MAX_RATIO:
            limit = f"that is {ratio:.0f} times its size, and the maximum is {MAX_RATIO} times"
        else:
            return
        message = f"{self._name} of {packed} bytes would unpack to {unpacked} bytes; {limit}"
        raise ArchiveError(message, "put large files into a data store")

    def _check_count(self, count: int) -> None:
        if count > MAX_ENTRIES:
            raise ArchiveError(
                f"{self._name} has more than {MAX_ENTRIES} files and directories", "put data files into a data store"
            )

    def _check_places(self, entries: List[zipfile.ZipInfo]) -> None:
        """Refuse entries that overlap or reach beyond the end: a small archive of such entries unpacks without end.

        Releases of Python before 2024 unpack them (CVE-2024-0450).
        """
        end = self._zip.start_dir
        for info in sorted(entries, key=lambda one: one.header_offset, reverse=True):
            first = info.header_offset + _HEADER_BYTES + len(info.orig_filename)
            if info.header_offset < 0 or first + info.compress_size > end:
                raise self._refusal(info, "overlaps another entry, or reaches beyond the archive's end")
            end = info.header_offset


def _recorded_count(file: IO[bytes]) -> int:
    """Return the number of entries in the end record of the archive (APPNOTE.TXT 4.3.14, 4.3.16). unzip compares it
    with the entries; zipfile does not."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MAX_COMMENT_BYTES - _END_BYTES - _LOCATOR_BYTES - _END64_BYTES))
    tail = file.read()
    end = len(tail) - _END_BYTES if tail[-_END_BYTES:].startswith(_END) else tail.rfind(_END)
    count = int.from_bytes(tail[end + 10 : end + 12], "little")
    locator = end - _LOCATOR_BYTES
    end64 = locator - _END64_BYTES
    if count == _COUNT_IS_IN_END64 and tail.startswith(_LOCATOR, locator) and tail.startswith(_END64, end64):
        return int.from_bytes(tail[end64 + 32 : end64 + 40], "little")
    return count

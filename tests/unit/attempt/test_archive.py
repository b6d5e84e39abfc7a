"""Tests that hostile, unusual and damaged archive entries are found before anything is unpacked."""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
from collections.abc import Callable

import pytest

from ffdl_batch.attempt import model_archive
from ffdl_batch.attempt.model_archive import MAX_DEPTH, ArchiveError, ModelArchive

FILE = stat.S_IFREG | 0o644
MADE_ON_WINDOWS, MADE_ON_UNIX = 0, 3


def zip_of(*entries: tuple[str, str], mode: int = 0, system: int = MADE_ON_UNIX, method: int = 8) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, text in entries:
            info = zipfile.ZipInfo(name)
            info.filename = info.orig_filename = name  # otherwise zipfile cuts the name at the NUL
            info.external_attr, info.create_system, info.compress_type = mode << 16, system, method
            packed.writestr(info, text)
    return buffer.getvalue()


def names_in(data: bytes) -> list[str]:
    opened = ModelArchive(io.BytesIO(data), "m.zip")
    opened.check_content()
    return ["/".join(member.parts) + "/" * member.is_directory for member in opened.members]


def patched(data: bytes, signature: bytes, offset: int, form: str, value: int) -> bytes:
    """Return the archive with a field of its last header of this kind replaced."""
    found = bytearray(data)
    struct.pack_into(form, found, data.rindex(signature) + offset, value)
    return bytes(found)


GOOD = zip_of(("a.py", "print(1)\n" * 9), ("b.py", "print(2)\n" * 9), method=0)
ENTRY, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def with_zip64_count(data: bytes, count: int) -> bytes:
    """Return the archive with an end record of Zip64 that has this number of entries."""
    end = data.rindex(END)
    size, start = struct.unpack_from("<LL", data, end + 12)
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    return data[:end] + record + locator + END + struct.pack("<4H2LH", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)


COMMENTED = patched(GOOD, END, 20, "<H", 8) + b"PK\x05 is "

LEADS_OUT = ("..", "../x", "a/../../x", "a/..", "/", "/x", "C:/x", "c:x", "\\x", "a\\..\\..\\x", "\\\\host\\x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((zip_of(("good", "x"), (name, "x")), "points outside") for name in LEADS_OUT),
        (zip_of(("..\\x", "x"), mode=FILE), "points outside"),
        *((zip_of((name, "x")), "is a file with an empty name") for name in (".", "./.", "")),
        (zip_of(("a\0.py", "x")), "NUL"),
        (zip_of(("a", "x"), ("d/", "x")), "'d/' of m.zip is a directory with content"),
        (zip_of(("n" * 256, "x")), "name that is too long"),
        (zip_of(("a" * 200 + "/" + "/".join(["b" * 50] * 40), "x")), "name that is too long"),
        (zip_of(("a/" * MAX_DEPTH + "b", "x")), "nested too deeply"),
        (zip_of(("a", "1"), ("./a", "2")), "entry './a' of m.zip exists twice"),
        (zip_of(("a", "1"), ("a/b", "2")), "'a' is a file of m.zip, and a directory ('a/b')"),
        (zip_of(("a/", ""), ("a", "1")), "'a' is a file of m.zip, and a directory ('a')"),
        *(
            (zip_of(("x", "y"), mode=kind | 0o777), "neither a file nor a directory")
            for kind in (stat.S_IFLNK, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)
        ),
        *((patched(GOOD, ENTRY, 8, "<H", flag), "'b.py' of m.zip is encrypted") for flag in (0x1, 0x40, 0x2000)),
        (patched(GOOD, ENTRY, 10, "<H", 9), "'b.py' of m.zip is compressed with deflate64"),
        (zip_of(("a", "x"), method=zipfile.ZIP_BZIP2), "compressed with bzip2"),
        (zip_of(("a", "x"), method=zipfile.ZIP_LZMA), "compressed with LZMA"),
        (patched(GOOD, ENTRY, 10, "<H", 77), "compressed with method 77"),
        (patched(GOOD, ENTRY, 16, "<I", 1), "'b.py' of m.zip is damaged: Bad CRC-32"),
        (patched(GOOD, LOCAL, 35, "<I", 0), "'b.py' of m.zip is damaged: Bad CRC-32"),
        (patched(zip_of(("a", "x" * 99)), LOCAL, 31, "<H", 0xFFFF), "'a' of m.zip is damaged: Error -3"),
        (patched(GOOD, LOCAL, 0, "<I", 0), "'b.py' of m.zip is damaged: Bad magic number"),
        (patched(GOOD, ENTRY, 24, "<I", 1000), "'b.py' of m.zip is damaged: 919 bytes are missing"),
        (patched(GOOD, ENTRY, 24, "<I", 1), "'b.py' of m.zip is damaged: Bad CRC-32"),
        (patched(GOOD, ENTRY, 20, "<I", 1000), "overlaps another entry, or reaches beyond"),
        (patched(GOOD, ENTRY, 42, "<I", 0), "overlaps another entry, or reaches beyond"),
        (patched(GOOD, ENTRY, 42, "<I", 1 << 30), "overlaps another entry, or reaches beyond"),
        (patched(GOOD, ENTRY, 24, "<I", 0xFFFFFFF0), "would unpack to 4294967361 bytes"),
        *(
            (patched(data, END, 10, "<H", count), f"m.zip has 2 entries, but {count} in its end record")
            for data in (GOOD, COMMENTED)
            for count in (0, 1, 3, 0xFFFF)
        ),
        (with_zip64_count(GOOD, 1 << 32), "m.zip has 2 entries, but 4294967296 in its end record"),
        (zip_of(("a" * 3000, "x")), f"entry '{'a' * 57}...' of m.zip has a name that is too long"),
        (zip_of(("a/" * 1500, "x")), f"entry '{'a/' * 28}a...' of m.zip has a name that is too long"),
        (zip_of(("../" + "a" * 3000, "x")), f"entry '../{'a' * 54}...' of m.zip points outside"),
        (zip_of(("a" * 100, "x"), ("./" + "a" * 100, "y")), f"entry './{'a' * 55}...' of m.zip exists twice"),
        (zip_of(("a" * 100, "x"), ("a" * 100 + "/b", "y")), f"and a directory ('{'a' * 57}...')"),
        *((damaged, "m.zip is not a readable zip file") for damaged in (b"", b"no zip", GOOD[:-10], LOCAL)),
        *((empty, "has no files") for empty in (b"PK\x05\x06" + bytes(18), zip_of(("./", ""), ("a/", "")))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_archive_rejects_hostile_or_damaged_entry(data: bytes, words: str) -> None:
    with pytest.raises(ArchiveError, match=re.escape(words)):
        names_in(data)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (zip_of(("./", ""), ("./a", "x"), ("b//./c", "x")), ["/", "a", "b/c"]),
        (zip_of(("a\\b.py", "x"), ("c\\", ""), system=MADE_ON_WINDOWS), ["a/b.py", "c/"]),
        (zip_of(("a\\b.py", "x")), ["a/b.py"]),
        (zip_of(("a\\b.py", "x"), mode=FILE), ["a\\b.py"]),
        (zip_of(("a/", ""), ("./a/", ""), ("a/A", "x"), ("a/a", "")), ["a/", "a/", "a/A", "a/a"]),
    ],
)
def test_archive_normalises_harmless_names(data: bytes, names: list[str]) -> None:
    assert names_in(data) == names


@pytest.mark.parametrize("data", [GOOD, COMMENTED, b"#!/bin/sh\n" + GOOD, with_zip64_count(GOOD, 2)])
def test_archive_accepts_every_form_of_end_record(data: bytes) -> None:
    assert names_in(data) == ["a.py", "b.py"]


def test_archive_accepts_count_of_many_entries_without_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_archive, "_COUNT_MODULUS", 2)
    assert names_in(patched(GOOD, END, 10, "<H", 0)) == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("limit", "make"),
    [("MAX_ENTRIES", lambda: zip_of(("a/b/c", "x"), ("d", "x"))), ("MAX_UNPACKED_BYTES", lambda: GOOD)],
)
def test_archive_rejects_more_than_limit(
    limit: str, make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_archive, limit, 4)
    with pytest.raises(ArchiveError, match=r"more than 4 files and dir|would unpack to 162 bytes"):
        names_in(make())


def test_archive_rejects_extreme_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_archive, "RATIO_FLOOR_BYTES", 1000_000)
    with pytest.raises(ArchiveError, match=r"would unpack to 5000000 bytes; that is .* times its size, and"):
        names_in(zip_of(("zeros", "\0" * 5_000_000)))

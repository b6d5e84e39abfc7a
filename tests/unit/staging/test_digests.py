"""ETags, and the parts that objects were stored in."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ffdl_batch.staging.digests import count_of_parts, digest_of, is_md5, part_sizes, parts_etag, ranges
from ffdl_batch.staging.stores.store import Item

MIB = 1 << 20
ETAG = "0" * 32


def test_forms_of_etags() -> None:
    assert is_md5(ETAG)
    assert not is_md5(f"{ETAG}-2")
    assert (count_of_parts(ETAG), count_of_parts(f"{ETAG}-12"), count_of_parts("W/abc-3")) == (0, 12, 0)


def test_the_etag_of_parts_is_the_digest_of_their_digests() -> None:
    parts = [b"one", b"two"]
    joined = b"".join(hashlib.md5(part).digest() for part in parts)
    assert parts_etag([hashlib.md5(part).hexdigest() for part in parts]) == f"{hashlib.md5(joined).hexdigest()}-2"


@pytest.mark.parametrize(
    ("size", "count", "told", "wanted"),
    [
        (20 * MIB, 2, 0, [10 * MIB, 15 * MIB, 16 * MIB]),
        (20 * MIB, 2, 12 * MIB, [12 * MIB]),
        (20 * MIB, 2, 4 * MIB, []),
        (7, 1, 0, [7]),
        (20 * MIB, 7, 0, []),
        (0, 1, 0, []),
    ],
)
def test_sizes_of_parts(size: int, count: int, told: int, wanted: list[int]) -> None:
    assert part_sizes(Item("k", size, f"{ETAG}-{count}", part_bytes=told)) == wanted


def test_ranges_are_the_whole() -> None:
    assert ranges(0, 5) == []
    assert ranges(10, 5) == [(0, 5), (5, 10)]
    assert ranges(11, 5) == [(0, 5), (5, 10), (10, 11)]


@pytest.mark.parametrize(("name", "wanted"), [("crc32", "352441c2"), ("sha1", hashlib.sha1(b"abc").hexdigest())])
def test_digests_of_files(tmp_path: Path, name: str, wanted: str) -> None:
    (tmp_path / "file").write_bytes(b"xabcx")
    file = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert digest_of(file, 1, 4, name) == wanted
        with pytest.raises(EOFError):
            digest_of(file, 0, 6, name)
    finally:
        os.close(file)

"""ETags, and the parts that objects were stored in."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffdl_batch.staging.stores.digests import count_of_parts, digest_of, is_md5, part_sizes, parts_etag, ranges
from ffdl_batch.staging.stores.store import Item
from ffdl_batch.staging.transfer import partial_download
from ffdl_batch.staging.transfer.partial_download import RunningDigest

MIB = 1 << 20
ETAG = "0" * 32


@contextmanager
def opened(tmp_path: Path, data: bytes) -> Iterator[int]:
    """The descriptor of a file with this content."""
    (tmp_path / "file").write_bytes(data)
    file = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def test_etag_functions_distinguish_md5_and_multipart_etags() -> None:
    assert is_md5(ETAG)
    assert not is_md5(f"{ETAG}-2")
    assert (count_of_parts(ETAG), count_of_parts(f"{ETAG}-12"), count_of_parts("W/abc-3")) == (0, 12, 0)


def test_parts_etag_is_md5_of_part_digests_with_part_count() -> None:
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
def test_part_sizes_lists_possible_sizes_of_multipart_object(
    size: int, count: int, told: int, wanted: list[int]
) -> None:
    assert part_sizes(Item("k", size, f"{ETAG}-{count}", part_bytes=told)) == wanted


def test_ranges_cover_whole_size_without_overlap() -> None:
    assert ranges(0, 5) == []
    assert ranges(10, 5) == [(0, 5), (5, 10)]
    assert ranges(11, 5) == [(0, 5), (5, 10), (10, 11)]


@pytest.mark.parametrize(("name", "wanted"), [("crc32", "352441c2"), ("sha1", hashlib.sha1(b"abc").hexdigest())])
def test_digest_of_hashes_byte_range_and_rejects_short_file(tmp_path: Path, name: str, wanted: str) -> None:
    with opened(tmp_path, b"xabcx") as file:
        assert digest_of(file, 1, 4, name) == wanted
        with pytest.raises(EOFError):
            digest_of(file, 0, 6, name)


def test_running_digest_accepts_parts_in_any_order_and_reads_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, preadv = os.urandom(10), os.preadv
    read: list[tuple[int, int]] = []

    def noted(descriptor: int, buffers: list[memoryview], start: int) -> int:
        read.append((start, sum(map(len, buffers))))
        return preadv(descriptor, buffers, start)

    monkeypatch.setattr(os, "preadv", noted)
    with opened(tmp_path, data) as file:
        running = RunningDigest(file, "md5")
        running.came(4, 8)
        assert read == []
        running.came(0, 4)
        assert read == [(0, 4), (4, 4)]
        running.came(8, 10)
        assert running.hexdigest(10) == hashlib.md5(data).hexdigest()
        assert read == [(0, 4), (4, 4), (8, 2)]


def test_running_digest_is_correct_with_many_threads(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    starts = list(range(0, len(data), 100))
    random.Random(1).shuffle(starts)
    with opened(tmp_path, data) as file:
        running = RunningDigest(file, "sha256")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda start: running.came(start, start + 100), starts))
        assert running.hexdigest(len(data)) == hashlib.sha256(data).hexdigest()


def test_running_digest_reads_long_range_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_download, "STEP_BYTES", 3)
    with opened(tmp_path, b"abcdefgh") as file:
        running = RunningDigest(file, "md5")
        running.came(0, 8)
        assert running.hexdigest(8) == hashlib.md5(b"abcdefgh").hexdigest()


def test_running_digest_rejects_file_that_was_cut(tmp_path: Path) -> None:
    with opened(tmp_path, b"abc") as file:
        running = RunningDigest(file, "md5")
        with pytest.raises(EOFError):
            running.came(0, 4)

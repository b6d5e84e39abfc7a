"""What is planted: data sets, the results that must come of them, metrics, and how much of everything."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1 << 20
SETS, RESULTS = "sets", "trained"
"""The buckets."""
QUICK_SETS, QUICK_RESULTS = "many-sets", "many-trained"
"""Those of the quick store."""
MAIN, EXPIRING, SHARED, HELD, MOUNTED = "main", "expiring", "shared", "held", "mounted"
"""Data sets: with faults between, with credentials that expire, of many jobs, of one that is halted and resumed, in
stores of several kinds that nodes mount."""
MANY, EACH = "many", 10
"""The data set of nothing but small files, and which of them become results: each so-and-so-many-th."""
MOST_WITH_FAULTS = 2000
"""Small files of the data set with faults between; a store that checks keys takes its time for each."""
ODD_NAMES = (
    "with blanks .txt", "\u00fcn\u00ef-\u03a9/\u96ea.bin", "plus+and%25.txt", "quote'and\".txt", "-dash", ".hidden",
    "a&b=c?d.txt", "#hash;semi:colon", "$HOME `id` (x).txt", "deep/er/and/deeper/a",
)  # fmt: skip
_FLIP = bytes(byte ^ 0x5A for byte in range(256))


@dataclass(frozen=True, slots=True)
class Scale:
    """How much: small files, the bytes of the large one, jobs that share a data set, records of each collector."""

    small_files: int
    sparse_bytes: int
    sharing: int
    records: int


SHORT = Scale(60, 20 * MIB, 4, 20)
FULL = Scale(2000, 96 * MIB, 10, 500)


def data_sets(scale: Scale, seed: int) -> dict[str, dict[str, bytes]]:
    """Data set → name → content."""
    source = random.Random(seed)
    main = {name: f"{name}\n".encode() * source.randint(1, 50) for name in ODD_NAMES}
    main |= {"empty": b"", "deep/empty too": b"", "slow": source.randbytes(400_000)}
    main |= _small(min(scale.small_files, MOST_WITH_FAULTS), source)
    main["sparse"] = _sparse(scale.sparse_bytes, source)
    few = {"a": b"one\n", "empty": b"", "deep/b": source.randbytes(3 * MIB + 17)}
    return {
        MAIN: main,
        EXPIRING: {f"part-{number:03d}": source.randbytes(10_000) for number in range(40)},
        SHARED: few | {f"many/{number:03d}": source.randbytes(5_000) for number in range(20)},
        HELD: {name: source.randbytes(20_000) for name in ("x", "y/z")},
        MOUNTED: {name: source.randbytes(2_000) for name in ODD_NAMES} | few,
        MANY: _small(scale.small_files, source),
    }


def _small(count: int, source: random.Random) -> dict[str, bytes]:
    return {f"many/{number:06d}": source.randbytes(source.randint(20, 900)) for number in range(count)}


def _sparse(size: int, source: random.Random) -> bytes:
    """Nothing but zeros with a few islands, one at its end."""
    data = bytearray(size)
    for place in (size // 3, size // 2, size - 1000):
        data[place : place + 1000] = source.randbytes(1000)
    return bytes(data)


def digests(files: Mapping[str, bytes]) -> dict[str, tuple[int, str]]:
    """What a learner is told to expect: size and SHA-256 by name."""
    return {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}


def transformed(data: bytes) -> bytes:
    """What a learner makes of a file."""
    return data.translate(_FLIP)


def losses(scale: Scale, seed: int) -> list[float]:
    """What a learner prints, one value a step from 1 on; floats of 32 bits hold each, and are written, as it is."""
    source = random.Random(seed + 1)
    return [source.randint(1, 1 << 14) / 16 for _ in range(scale.records)]

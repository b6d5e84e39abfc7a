"""How data with holes is written."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ffdl_batch.host import file_attributes
from ffdl_batch.host.file_attributes import write_sparse

BLOCK = 4096


@pytest.mark.parametrize("seed", range(20))
def test_write_sparse_writes_every_byte_and_leaves_out_zero_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Blocks of zeros, blocks that only begin or end with zeros, and an incomplete last block."""
    dice = random.Random(seed)
    zeros, begun, ended, full = (
        bytes(BLOCK), bytes(BLOCK - 1) + b"x", b"x" + bytes(BLOCK - 1), dice.randbytes(BLOCK - 1) + b"x",
    )  # fmt: skip
    blocks = [dice.choice([zeros, begun, ended, full]) for _ in range(dice.randrange(8))]
    data = b"".join(blocks) + bytes(dice.choice([0, 1, BLOCK - 1]))
    written: list[tuple[int, int]] = []
    write_all = file_attributes.write_all

    def noted(descriptor: int, piece: bytes | memoryview, at: int) -> None:
        written.append((at, at + len(piece)))
        write_all(descriptor, piece, at)

    monkeypatch.setattr(file_attributes, "write_all", noted)
    start = 3 * BLOCK
    with (tmp_path / "file").open("w+b") as file:
        os.ftruncate(file.fileno(), start + len(data))
        write_sparse(file.fileno(), data, start)
        assert file.read() == bytes(start) + data
    for number, block in enumerate(blocks):
        at = start + number * BLOCK
        assert any(begin <= at < end for begin, end in written) is (block != zeros)

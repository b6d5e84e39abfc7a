"""A cache with entries that the staging program filled from a directory."""

from __future__ import annotations

import os
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import Cache, Cached, Direction, StageTask, Transfer, encode_task
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.staging.program import run_program
from tests.staging_rig import lines_of


def fill(base: Path, cache: Path, name: str, size: int, limit_bytes: int = 0) -> Cached:
    """An entry of one file of so many bytes; files of the tests' own lie in `base`."""
    store = base / "store" / name
    store.mkdir(parents=True, exist_ok=True)
    if not (store / "file").exists():
        (store / "file").write_bytes(name.encode() * (size // len(name)) + b"." * (size % len(name)))
    number = len(list(base.glob("state-*")))
    transfer = Transfer(StoreAddress(StoreKind.FILE, container=str(store)), "", str(base / f"data-{number}"), link=True)
    task = StageTask(Direction.IN, (transfer,), str(base / f"state-{number}"))
    task = StageTask(task.direction, task.transfers, task.state_dir, cache=Cache(str(cache), limit_bytes))
    path = base / "task.json"
    path.write_text(encode_task(task))
    output = base / "output"
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        assert run_program(str(path), check=False, output=descriptor) == 0, output.read_text()
    finally:
        os.close(descriptor)
    (found,) = [line for line in lines_of(output.read_text()) if isinstance(line, Cached)]
    return found

"""A mounted store as a learner reads it: one file after the other, by the process that holds mounts in jobs.

A mount is a new one each time, from the start of its holder on, as a job has it. What came is read again after that.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.controller.mounts.mount_process import END
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.data.mounts import Mounts
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.host.fast_dataclass import dataclass

CACHE_BYTES = 6 * 10**9
"""As a job with one GPU has."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Read:
    """Seconds: from the start until the first byte, until the last one, and for all of it once more."""

    first: float
    all: float
    again: float


@contextmanager
def mounted(transfer: Transfer, secrets: dict[str, str], directory: Path) -> Iterator[float]:
    """What lies below the prefix is at `transfer.local`; the moment at which the mount was begun."""
    for path in (Path(transfer.local), directory):
        path.mkdir(mode=0o700)
    order = {
        "transfer": to_plain(transfer),
        "mounts": to_plain(Mounts((0,), cache_bytes=CACHE_BYTES)),
        "secrets": secrets,
        "job": "0",
    }
    argv = [*module_argv("ffdl_batch.controller.mounts.mount_process"), str(directory)]
    began = time.monotonic()
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert holder.stdin and holder.stdout
    try:
        holder.stdin.write(json.dumps(order).encode() + b"\n")
        holder.stdin.flush()
        said = json.loads(holder.stdout.readline())
        if not said.get("mounted"):
            raise RuntimeError(f"it is not mounted: {said}")
        yield began
    finally:
        holder.stdin.write(END)
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def read_all(directory: Path, began: float) -> Read:
    """All files of a directory, twice; the clock began before."""
    names = sorted(path.name for path in directory.iterdir())
    with (directory / names[0]).open("rb", buffering=0) as file:
        file.read(1)
    first = time.monotonic()
    _pass(directory, names)
    end = time.monotonic()
    _pass(directory, names)
    return Read(first - began, end - began, time.monotonic() - end)


def _pass(directory: Path, names: list[str]) -> None:
    for name in names:
        with (directory / name).open("rb", buffering=0) as file:
            while file.read(_MIB):
                continue

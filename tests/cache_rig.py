"""A cache as tests use it: a staging rig, jobs within this process and as processes, and what was downloaded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.data.staging_protocol import Cache, Cached, Done, Note, StageTask
from ffdl_batch.staging.cache.user_cache import Shelf
from tests import preloaded
from tests.staging_rig import MIB, StagingRig, lines_of

NOISE = random.Random(11).randbytes(3 * MIB + 17)
FILES = {"a.txt": b"one", "deep/b.bin": NOISE, "empty": b""}


class CacheRig:
    """A staging rig with a cache."""

    def __init__(self, staging: StagingRig) -> None:
        self.staging, self.directory = staging, staging.directory / "cache"
        self.shelf = Shelf(str(self.directory), os.getuid())
        self.cache = Cache(str(self.directory), 100 * MIB, stale_s=30)
        self.number = 0

    def put(self, prefix: str = "set", files: dict[str, bytes] = FILES) -> None:
        for name, data in files.items():
            self.staging.put(f"{prefix}/{name}", data)

    def task(self, prefix: str = "set", link: bool = True, **changes: Any) -> StageTask:
        """Of another job each time."""
        self.number += 1
        self.staging.local = self.staging.directory / f"data-{self.number}"
        cache = replace(self.cache, **changes.pop("cache", {}))
        state = str(self.staging.directory / f"state-{self.number}")
        task = self.staging.task(prefix=prefix, cache=cache, state_dir=state, **changes)
        return replace(task, transfers=(replace(task.transfers[0], link=link),))

    def run(self, task: StageTask) -> tuple[Done, list[Cached], list[str]]:
        outcome = self.staging.run(task)
        return outcome.done, outcome.of(Cached), [note.why for note in outcome.of(Note)]

    def files(self, task: StageTask) -> dict[str, bytes]:
        top = Path(os.path.realpath(task.transfers[0].local))
        return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    def half(self) -> list[str]:
        """What is in the directory of fillings."""
        return sorted(path.name for path in Path(self.shelf.root, "filling").iterdir())

    def start(self, task: StageTask) -> Job:
        return Job(self.staging, task)

    def downloads(self) -> Counter[str]:
        """Bytes of each object that came."""
        with self.staging.proxy.lock:  # it counts on meanwhile
            found = dict(self.staging.proxy.given)
        return Counter({path.split("/", 2)[2]: size for path, size in found.items() if path.count("/") > 1 and size})

    def keys(self) -> list[str]:
        return self.shelf.names()


class Job:
    """The program as a process."""

    def __init__(self, staging: StagingRig, task: StageTask) -> None:
        self.task, self.output = task, Path(task.state_dir + ".out")
        written = Path(task.state_dir + ".json")
        staging.written(task).rename(written)
        argv = [sys.executable, "-m", "ffdl_batch.staging", str(written)]
        with self.output.open("w") as output:
            self.process = preloaded.PopenTree(argv, stdout=output, stderr=subprocess.STDOUT)

    def done(self) -> Done:
        assert self.process.wait(timeout=180) == 0, self.output.read_text()
        last = lines_of(self.output.read_text())[-1]
        assert isinstance(last, Done)
        return last

    def of(self, kind: type[Any]) -> list[Any]:
        whole = self.output.read_text().rpartition("\n")[0] + "\n"
        return [line for line in lines_of(whole if whole.strip() else "") if isinstance(line, kind)]


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.fixture
def cached(rig: StagingRig) -> CacheRig:
    return CacheRig(rig)

"""The cache of a node: the first job of a data set fills it, ten more find it there, then ten ask at once for another.

Needs neither a cluster nor root. Each job is the staging program as a whole process; the server is as in
:mod:`tests.benchmarks.staging`. Bytes that left the server are counted by a proxy in front of it only where jobs ask at
once, where nothing is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import (
    Cache,
    Cached,
    Direction,
    Line,
    StageTask,
    Transfer,
    encode_task,
    read_line,
)
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.staging import BUCKET, Load, loads_of, write_loads
from tests.fakes.fault_proxy import FaultProxy
from tests.fakes.s3_server import S3Server


class _Node:
    """A node with a cache, and data sets in a store."""

    def __init__(self, server: S3Server, base: Path) -> None:
        self.server, self.base, self.jobs = server, base, 0
        (base / "secrets.json").write_text(json.dumps({"key": "anybody", "secret": "anything"}))
        (base / "secrets.json").chmod(0o600)

    def argv(self, endpoint: str, prefix: str, cache: str) -> list[str]:
        """The program for another job, which may have a link to the cache."""
        self.jobs += 1
        job = self.base / f"job-{self.jobs}"
        job.mkdir()
        keys = {"user_name": "key", "password": "secret"}
        store = StoreAddress(StoreKind.S3, endpoint, container=BUCKET, credentials=keys)
        transfer = Transfer(store, prefix, str(job / "data"), link=True)
        secrets, kept = str(self.base / "secrets.json"), Cache(str(self.base / cache))
        task = StageTask(Direction.IN, (transfer,), str(job / "state"), secrets, cache=kept)
        (job / "task.json").write_text(encode_task(task))
        return [sys.executable, "-m", "ffdl_batch.staging", str(job / "task.json")]

    def timed(self, prefix: str, cache: str, *, fills: bool) -> float:
        """Seconds until the data of a job are ready."""
        argv = self.argv(self.server.endpoint, prefix, cache)
        began = time.monotonic()
        found = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
        taken = time.monotonic() - began
        if [one.filled for one in _cached(found.stdout)] != [fills]:
            raise RuntimeError(f"a job of {prefix} used the cache otherwise: {found.stdout}")
        return taken


def measure_cache(knobs: Knobs) -> list[Figure]:
    """`rounds` fillings, `sharing` hits after each, and `sharing` jobs that ask at once."""
    with tempfile.TemporaryDirectory(prefix="ffdl-bench-") as directory:
        base = Path(directory)
        server = S3Server(base / "server.log")
        try:
            server.client.create_bucket(Bucket=BUCKET)
            write_loads(base, knobs)
            node = _Node(server, base)
            figures: list[Figure] = []
            for load in loads_of(knobs):
                name = load.name
                paths = sorted((base / name).iterdir())
                server.put_many(BUCKET, ((f"{name}/{path.name}", path.read_bytes()) for path in paths))
                figures += _figures(node, load, knobs)
            return figures
        finally:
            server.stop()


def _figures(node: _Node, load: Load, knobs: Knobs) -> list[Figure]:
    name, what = load.name, f"data set: {load.what}"
    filling: list[float] = []
    hits: list[float] = []
    for turn in range(knobs.rounds):
        cache = f"cache-{name}-{turn}"
        filling.append(node.timed(name, cache, fills=True))
        hits += [node.timed(name, cache, fills=False) for _ in range(knobs.sharing)]
    return [
        Figure(what, "ready, and the cache filled", "ffdl", "s", filling),
        Figure(what, "the same", "ffdl", load.unit, [load.amount / taken for taken in filling]),
        Figure(what, "ready at a hit", "ffdl", "s", hits),
        Figure(what, "the same", "ffdl", load.unit, [load.amount / taken for taken in hits]),
        Figure(what, f"downloads of {knobs.sharing} jobs at once", "ffdl", "times", [_shared(node, name, knobs)]),
    ]


def _shared(node: _Node, name: str, knobs: Knobs) -> float:
    """How often the data set left the server for jobs that asked at once, into an empty cache."""
    proxy = FaultProxy(node.server.port)
    try:
        argvs: Sequence[Sequence[str]] = [
            node.argv(proxy.endpoint, name, f"cache-{name}-shared") for _ in range(knobs.sharing)
        ]
        running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for argv in argvs]
        said = [process.communicate()[0] for process in running]
        if any(process.returncode for process in running) or any(len(_cached(text)) != 1 for text in said):
            raise RuntimeError(f"jobs that share {name} did not get it by the cache: {said}")
        size = sum(path.stat().st_size for path in (node.base / name).iterdir())
        return sum(moved for path, moved in proxy.given.items() if f"/{name}/" in path) / size
    finally:
        proxy.stop()


def _cached(said: str) -> list[Cached]:
    lines: list[Line | None] = [read_line(text) for text in said.splitlines()]
    return [line for line in lines if isinstance(line, Cached)]

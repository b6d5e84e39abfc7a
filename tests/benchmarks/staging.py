"""Staging: one large file and many small ones, in and out, beside boto3's own transfer and the same server; and what a
mount of the store gives, where this machine can mount.

Needs neither a cluster nor root. Both programs are whole processes, with as many requests at once. The server is on
this machine and takes its share of the processors, a small one with the usual `store_server`: so the figures compare,
and say little of a network. The client's own processor time is beside them.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ffdl_batch.controller.mounts.node_mounts import lacking
from ffdl_batch.domain.data.staging_protocol import Direction, StageTask, Transfer, encode_task
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.mounted import Read, mounted, read_all
from tests.benchmarks.plain_transfer import PARALLEL
from tests.fakes.s3_server import QuickServer, S3Server

BUCKET, MIB = "bench", 1 << 20
SMALL_BYTES = 1000
MOUNT = "ffdl, mounted"
SERVERS = {"quick": QuickServer, "moto": S3Server}
PLAIN = Path(__file__).resolve().parent / "plain_transfer.py"


@dataclass(frozen=True, slots=True)
class Load:
    """Files in a directory, stored below a prefix of the same name; `amount` of `unit` in all."""

    name: str
    what: str
    amount: float
    unit: str


def measure_staging(knobs: Knobs) -> list[Figure]:
    """`rounds` runs of each, in turns; what came and what went is compared once each time."""
    with tempfile.TemporaryDirectory(prefix="ffdl-bench-") as directory:
        base = Path(directory)
        server = SERVERS[knobs.store_server](base / "server.log")
        try:
            return _measure(server, base, knobs)
        finally:
            server.stop()


def _measure(server: S3Server, base: Path, knobs: Knobs) -> list[Figure]:
    server.client.create_bucket(Bucket=BUCKET)
    (base / "secrets.json").write_text(json.dumps({"key": "anybody", "secret": "anything"}))
    (base / "secrets.json").chmod(0o600)
    write_loads(base, knobs)
    figures = []
    for load in loads_of(knobs):
        paths = sorted((base / load.name).iterdir())
        server.put_many(BUCKET, ((f"{load.name}/{path.name}", path.read_bytes()) for path in paths))
        figures += _turns(server, base, load, knobs.rounds)
    return figures


def _mounts(server: S3Server, base: Path, load: Load, turn: int) -> Read:
    """The load as a job sees it that mounts it."""
    local = base / f"mount-{turn}-{load.name}"
    transfer = Transfer(_store(server), load.name, str(local))
    secrets = json.loads((base / "secrets.json").read_text())
    with mounted(transfer, secrets, base / f"holder-{turn}-{load.name}") as began:
        read = read_all(local, began)
        _require_same(base / load.name, local, "the mount has")
    return read


def loads_of(knobs: Knobs) -> list[Load]:
    """One large file, and many small ones."""
    return [
        Load("large", f"one file of {knobs.staged_mib} MiB", knobs.staged_mib, "MiB/s"),
        Load("small", f"{knobs.staged_files} files of {SMALL_BYTES} bytes", knobs.staged_files, "files/s"),
    ]


def write_loads(base: Path, knobs: Knobs) -> None:
    """The files of both loads, in directories of their names."""
    source = random.Random(1)
    for name, sizes in (("large", [knobs.staged_mib * MIB]), ("small", [SMALL_BYTES] * knobs.staged_files)):
        (base / name).mkdir()
        for number, size in enumerate(sizes):
            with (base / name / f"{number:06d}").open("wb") as file:
                for start in range(0, size, MIB):
                    file.write(source.randbytes(min(MIB, size - start)))


def _turns(server: S3Server, base: Path, load: Load, rounds: int) -> list[Figure]:
    whose: dict[str, Callable[[Direction, str, Path], Sequence[str]]] = {
        "ffdl": lambda *order: _ours(server, base, *order),
        "boto3": lambda *order: _plain(server, *order),
    }
    samples: dict[tuple[str, str], list[float]] = {}
    waits: dict[str, list[float]] = {}
    again: list[float] = []
    why = lacking()
    if why:
        print(f"nothing is mounted here: {why}", file=sys.stderr)
    used: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds):
        for who, argv in whose.items():
            came, prefix = base / f"{who}-{turn}", f"{who}-{turn}-{load.name}"
            came.mkdir()
            taken, cpu_s = _timed(argv(Direction.IN, load.name, came))
            used.setdefault(("in", who), []).append(cpu_s)
            _require_same(base / load.name, came, f"{who} brought")
            samples.setdefault(("in", who), []).append(load.amount / taken)
            waits.setdefault(who, []).append(taken)
            taken, cpu_s = _timed(argv(Direction.OUT, prefix, base / load.name))
            used.setdefault(("out", who), []).append(cpu_s)
            _require_stored(server, base / load.name, prefix, f"{who} stored")
            samples.setdefault(("out", who), []).append(load.amount / taken)
            shutil.rmtree(came)
        if not why:
            read = _mounts(server, base, load, turn)
            samples.setdefault(("in", MOUNT), []).append(load.amount / read.all)
            again.append(load.amount / read.again)
            waits.setdefault(MOUNT, []).append(read.first)
    rates = [Figure(load.what, f"{way}, whole process", who, load.unit, some) for (way, who), some in samples.items()]
    if again:
        rates.append(Figure(load.what, "read again", MOUNT, load.unit, again))
    rates += [Figure(load.what, f"{way}, the client's CPU", who, "s", some) for (way, who), some in used.items()]
    return rates + [Figure(load.what, "until a learner can begin", who, "s", found) for who, found in waits.items()]


def _ours(server: S3Server, base: Path, direction: Direction, prefix: str, local: Path) -> list[str]:
    # What an earlier run remembers must save this one nothing.
    state, task = tempfile.mkdtemp(prefix="state-", dir=base), base / "task.json"
    transfers = (Transfer(_store(server), prefix, str(local)),)
    task.write_text(encode_task(StageTask(direction, transfers, state, str(base / "secrets.json"), parallel=PARALLEL)))
    task.chmod(0o600)
    return [sys.executable, "-m", "ffdl_batch.staging", str(task)]


def _store(server: S3Server) -> StoreAddress:
    keys = {"user_name": "key", "password": "secret"}
    return StoreAddress(StoreKind.S3, endpoint=server.endpoint, container=BUCKET, credentials=keys)


def _plain(server: S3Server, direction: Direction, prefix: str, local: Path) -> list[str]:
    return [sys.executable, str(PLAIN), direction.value, server.endpoint, BUCKET, prefix, str(local)]


def _timed(argv: Sequence[str]) -> tuple[float, float]:
    """Seconds, and seconds of processors that the program used."""
    before, began = _of_children(), time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, _of_children() - before


def _of_children() -> float:
    """Of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _require_same(wanted: Path, found: Path, what: str) -> None:
    names = [path.name for path in wanted.iterdir()]
    if {path.name for path in found.iterdir()} != set(names):
        raise RuntimeError(f"{what} other files")
    if any((wanted / name).read_bytes() != (found / name).read_bytes() for name in names):
        raise RuntimeError(f"{what} other bytes")


def _require_stored(server: S3Server, wanted: Path, prefix: str, what: str) -> None:
    pages = server.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
    sizes = {one["Key"].rpartition("/")[2]: one["Size"] for page in pages for one in page.get("Contents", [])}
    if sizes != {path.name: path.stat().st_size for path in wanted.iterdir()}:
        raise RuntimeError(f"{what} other objects")

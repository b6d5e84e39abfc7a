"""Staging: one large file and many small ones, in and out, beside boto3's own transfer and the AWS command line (if
`aws` is on PATH) with the same server; and what a mount of the store gives, where this machine can mount.

Needs neither a cluster nor root. All programs are whole processes, with as many requests at once. The server is on
this machine and takes its share of the processors, a small one with the usual `store_server`: so the figures compare,
and say little of a network. The client's own processor time is beside them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
AWS_CONFIG = f"[default]\ns3 =\n  addressing_style = path\n  max_concurrent_requests = {PARALLEL}\n"
AIMS = {"boto3": ">= 0.95", "aws": ">= 1"}
"""Our rate as a multiple of the plain tool's."""


@dataclass(frozen=True, slots=True)
class Load:
    """Files in a directory, stored below a prefix of the same name; `amount` of `unit` in all. `in_parts`: they are
    stored as boto3 stores large files."""

    name: str
    what: str
    amount: float
    unit: str
    in_parts: bool = False


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
    large, small = loads_of(knobs)
    parts = Load("parts", f"{large.what}, stored in parts", large.amount, large.unit, in_parts=True)
    (base / parts.name).symlink_to(large.name)
    for load in (large, parts, small):
        if load.in_parts:
            subprocess.run(_plain(server, Direction.OUT, load.name, base / load.name), check=True)
        else:
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
    samples: dict[tuple[str, str], list[float]] = {}
    used: dict[tuple[str, str], list[float]] = {}
    waits: dict[str, list[float]] = {}
    again: list[float] = []
    why = lacking()
    if why:
        print(f"nothing is mounted here: {why}", file=sys.stderr)
    programs = list(_programs(server, base).items())
    for turn in range(rounds):
        for who, program in programs if turn % 2 == 0 else programs[::-1]:  # the first one finds the disk busiest
            for way, (taken, cpu_s) in _turn(server, base, load, who, program, turn).items():
                samples.setdefault((way, who), []).append(load.amount / taken)
                used.setdefault((way, who), []).append(cpu_s)
                if way == "in":
                    waits.setdefault(who, []).append(taken)
        if not why:
            read = _mounts(server, base, load, turn)
            samples.setdefault(("in", MOUNT), []).append(load.amount / read.all)
            again.append(load.amount / read.again)
            waits.setdefault(MOUNT, []).append(read.first)
    rates = [Figure(load.what, f"{way}, whole process", who, load.unit, some) for (way, who), some in samples.items()]
    rates += _ratios(load, samples)
    if again:
        rates.append(Figure(load.what, "read again", MOUNT, load.unit, again))
    rates += [Figure(load.what, f"{way}, the client's CPU", who, "s", some) for (way, who), some in used.items()]
    return rates + [Figure(load.what, "until a learner can begin", who, "s", found) for who, found in waits.items()]


Program = Callable[[Direction, str, Path], Sequence[str]]


def _programs(server: S3Server, base: Path) -> dict[str, Program]:
    """The command lines of all clients that this machine has."""
    found: dict[str, Program] = {
        "ffdl": lambda *order: _ours(server, base, *order),
        "boto3": lambda *order: _plain(server, *order),
    }
    aws = shutil.which("aws")
    if aws is None:
        print("the AWS command line is not measured: there is no `aws` on PATH", file=sys.stderr)
    else:
        found["aws"] = lambda *order: _aws(aws, server, *order)
    return found


def _turn(
    server: S3Server, base: Path, load: Load, who: str, program: Program, turn: int
) -> dict[str, tuple[float, float]]:
    """Move the load both ways, and compare every byte. How the source is stored makes no difference to the way out."""
    came, prefix = base / f"{who}-{turn}", f"{who}-{turn}-{load.name}"
    came.mkdir()
    environment = _environment(base)
    found = {"in": _timed(program(Direction.IN, load.name, came), environment)}
    _require_same(base / load.name, came, f"{who} brought")
    shutil.rmtree(came)
    if not load.in_parts:
        found["out"] = _timed(program(Direction.OUT, prefix, base / load.name), environment)
        _require_stored(server, base / load.name, prefix, f"{who} stored")
    return found


def _ratios(load: Load, samples: Mapping[tuple[str, str], Sequence[float]]) -> list[Figure]:
    """Our rate over that of each plain tool in the same turn."""
    found = []
    for (way, who), theirs in samples.items():
        if who in AIMS:
            ratios = [ours / their for ours, their in zip(samples[way, "ffdl"], theirs, strict=True)]
            found.append(Figure(load.what, f"{way}, ffdl / {who}", "ffdl", "x", ratios, AIMS[who]))
    return found


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


def _aws(aws: str, server: S3Server, direction: Direction, prefix: str, local: Path) -> list[str]:
    there, here = f"s3://{BUCKET}/{prefix}/", f"{local}/"
    ends = (there, here) if direction is Direction.IN else (here, there)
    return [aws, "--endpoint-url", server.endpoint, "s3", "cp", "--recursive", "--only-show-errors", *ends]


def _environment(base: Path) -> dict[str, str]:
    """That of the AWS command line: the others do not read it."""
    config = base / "aws.ini"
    config.write_text(AWS_CONFIG)
    keys = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**os.environ, **keys, "AWS_CONFIG_FILE": str(config)}


def _timed(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds, and seconds of processors that the program used."""
    before, began = _of_children(), time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=environment)
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
    etags = {
        one["Key"].rpartition("/")[2]: one["ETag"].strip('"') for page in pages for one in page.get("Contents", [])
    }
    if set(etags) != {path.name for path in wanted.iterdir()}:
        raise RuntimeError(f"{what} other objects")
    for name, etag in etags.items():
        data = (wanted / name).read_bytes()
        if "-" in etag:  # stored in parts, so it is no MD5
            is_same = server.client.get_object(Bucket=BUCKET, Key=f"{prefix}/{name}")["Body"].read() == data
        else:
            is_same = etag == hashlib.md5(data).hexdigest()
        if not is_same:
            raise RuntimeError(f"{what} other bytes")

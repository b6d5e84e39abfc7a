"""The figures of staging and of its cache, from the smallest run: both clients move everything, and are compared."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.mounts.node_mounts import lacking
from tests.benchmarks import staging
from tests.benchmarks.caching import measure_cache
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.staging import MOUNT, measure_staging

pytestmark = pytest.mark.full

SMALLEST = Knobs(rounds=1, staged_mib=1, staged_files=3)


@pytest.mark.parametrize(("server", "mib"), [("quick", 17), ("moto", 1)])
def test_staging_benchmark_measures_every_client_direction_and_load(server: str, mib: int) -> None:
    figures = measure_staging(replace(SMALLEST, store_server=server, staged_mib=mib))
    large, clients = f"one file of {mib} MiB", ["ffdl", "boto3", *(["aws"] if shutil.which("aws") else [])]
    mounted = [("in, whole process", MOUNT), ("read again", MOUNT), ("until a learner can begin", MOUNT)]
    wanted = set()
    for load, rate, ways in (
        (large, "MiB/s", ("in", "out")),
        (f"{large}, stored in parts", "MiB/s", ("in",)),
        ("3 files of 1000 bytes", "files/s", ("in", "out")),
    ):
        wanted |= {(load, f"{way}, whole process", rate, who) for way in ways for who in clients}
        wanted |= {(load, f"{way}, the client's CPU", "s", who) for way in ways for who in clients}
        wanted |= {(load, f"{way}, ffdl / {who}", "x", "ffdl") for way in ways for who in clients[1:]}
        wanted |= {(load, "until a learner can begin", "s", who) for who in clients}
        if not lacking():
            wanted |= {(load, measure, "s" if "until" in measure else rate, who) for measure, who in mounted}
    assert {(one.benchmark, one.measure, one.unit, one.who) for one in figures} == wanted
    assert len(figures) == len(wanted)
    assert all(len(one.samples) == 1 and one.samples[0] > 0 for one in figures)


def test_staging_benchmark_raises_when_client_transfers_wrong_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = tmp_path / "lazy.py"
    lazy.write_text("")
    monkeypatch.setattr(staging, "PLAIN", lazy)
    with pytest.raises(RuntimeError, match="boto3 brought other files"):
        measure_staging(SMALLEST)


def test_cache_benchmark_reports_all_measures_and_one_download() -> None:
    figures = measure_cache(Knobs(rounds=1, staged_mib=1, staged_files=3, sharing=2))
    assert [(one.benchmark, one.measure, one.unit, len(one.samples)) for one in figures] == [
        (f"data set: {data}", measure, unit, count)
        for data, rate in (("one file of 1 MiB", "MiB/s"), ("3 files of 1000 bytes", "files/s"))
        for measure, unit, count in (
            ("ready, and the cache filled", "s", 1),
            ("the same", rate, 1),
            ("ready at a hit", "s", 2),
            ("the same", rate, 2),
            ("downloads of 2 jobs at once", "times", 1),
        )
    ]
    assert [one.samples[0] for one in figures if one.unit == "times"] == [1.0, 1.0]

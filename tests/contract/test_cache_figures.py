"""The figures of the cache, from the smallest run."""

from __future__ import annotations

import pytest

from tests.benchmarks.caching import measure_cache
from tests.benchmarks.knobs import Knobs

pytestmark = pytest.mark.full


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

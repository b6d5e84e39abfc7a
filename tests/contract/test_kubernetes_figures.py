"""The figures of Kubernetes, from a small run: what is counted, and no time."""

from __future__ import annotations

import pytest

from tests.benchmarks.knobs import Knobs
from tests.benchmarks.kubernetes import LOOP, measure_kubernetes

pytestmark = pytest.mark.full

JOBS = 6


def test_kubernetes_benchmark_counts_constant_api_calls_per_job() -> None:
    figures = {(one.measure, one.who): one for one in measure_kubernetes(Knobs(cluster_jobs=JOBS))}
    assert {name for name, who in figures if who == "ffdl"} == {
        "accepted", "all created", "all completed", "API calls per job", "lists and watches of all",
        "daemon's processor time per job", "daemon's resident memory",
    }  # fmt: skip
    assert {name for name, who in figures if who == LOOP} == {"all created", "API calls per job"}
    assert figures["API calls per job", LOOP].samples == [1]
    assert figures["all created", f"ffdl / {LOOP}"].samples[0] > 0
    asked = figures["API calls per job", "ffdl"].detail["requests"]
    assert isinstance(asked, dict)
    created = {what: number for what, number in asked.items() if what.startswith(("create ", "patch "))}
    assert created == {"create jobs": JOBS, "patch pods": JOBS}, "each is one request, and its pod is let go"
    assert figures["lists and watches of all", "ffdl"].samples[0] < JOBS, "no list and no watch for each job"

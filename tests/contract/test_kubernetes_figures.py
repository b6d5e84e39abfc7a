"""The figures of Kubernetes, from a small run: what is counted, and no time."""

from __future__ import annotations

import pytest

from tests.benchmarks.knobs import Knobs
from tests.benchmarks.kubernetes import measure_kubernetes

pytestmark = pytest.mark.full

JOBS, OBJECTS = 6, 3


def test_kubernetes_benchmark_counts_constant_api_calls_per_job() -> None:
    figures = {(one.measure, one.who): one for one in measure_kubernetes(Knobs(cluster_jobs=JOBS))}
    assert {name for name, who in figures if who == "ffdl"} == {
        "accepted", "all created", "all completed", "API calls per job", "lists and watches of all",
        "daemon's processor time per job", "daemon's resident memory",
    }  # fmt: skip
    assert {name for name, who in figures if who != "ffdl"} == {"all created", "API calls per job"}
    assert figures["API calls per job", "loop of creates"].samples == [OBJECTS]
    asked = figures["API calls per job", "ffdl"].detail["requests"]
    assert isinstance(asked, dict)
    created = {what: number for what, number in asked.items() if what.startswith("create ")}
    assert sum(created.values()) == JOBS * OBJECTS
    assert (asked["patch jobs"], asked["patch pods"]) == (JOBS, JOBS), "each is let go, and its pod is"
    assert figures["lists and watches of all", "ffdl"].samples[0] < JOBS, "no list and no watch for each job"

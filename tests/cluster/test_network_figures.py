"""The benchmarks of jobs' networks in their short form: what they count is judged, and no time. NETWORKS=200 for more
jobs that come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.benchmarks.beginning import FIRST, HEAD, PROLOG, READY, SCRIPT, measure_beginning
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import table
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.leftovers import MARK, come_and_go
from tests.benchmarks.leftovers_table import leftovers_table
from tests.benchmarks.traffic import ROUND_TRIPS, measure_traffic
from tests.cluster.rig import Cluster
from tests.proof.desk import Desk

pytestmark = pytest.mark.full

JOBS = int(os.environ.get("NETWORKS", "20"))
OF_NETWORKS = ("namespaces", "mounts", "slots", "claims", "jobs' directories", "filter tables", "UDP sockets")


@pytest.fixture
def bench(cluster: Cluster) -> Iterator[Bench]:
    """A desk of alice's, with as little as possible to measure."""
    with Desk(cluster, "alice", "network-figures", "cli") as desk:
        bench = Bench(cluster, desk, Knobs(batch=1, drain=1, live_jobs=1, rounds=1, gangs=(2,)))
        yield bench
        bench.cancel_plain()


def test_overlay_jobs_leave_no_network_resources_on_nodes(bench: Bench) -> None:
    coming = come_and_go(bench.cluster, bench.desk, JOBS, "sbatch, overlay", MARK)
    print(leftovers_table([coming]))
    assert coming.networks == JOBS
    # What is counted is there while they run, so nothing of it afterwards says something.
    assert [kind for kind in OF_NETWORKS if not coming.most[kind] > len(coming.before[kind])] == []
    assert coming.left == {}


def test_traffic_benchmark_measures_job_and_host_networks(bench: Bench) -> None:
    figures = measure_traffic(bench)
    print(table(figures))
    counts = {(one.measure, one.who): len(one.samples) for one in figures if one.unit}
    # The bare network is measured beside each of the two.
    assert len(counts) == 9 and set(counts.values()) == {1, 2, ROUND_TRIPS, 2 * ROUND_TRIPS}
    assert all(min(one.samples) > 0 for one in figures if one.unit)


def test_start_benchmark_measures_each_phase_with_and_without_job_network(bench: Bench) -> None:
    bench.prepare()
    figures = measure_beginning(bench)
    print(table(figures))
    found = {(one.measure, one.who): len(one.samples) for one in figures}
    first, overlay = f"allocation to {FIRST}", "sbatch, overlay"
    ours = [(f"allocation to {measure}", f"ffdl, {level}") for measure in (HEAD, READY) for level in ("host", "job")]
    plain = [(f"allocation to {SCRIPT}", who) for who in ("sbatch", overlay)]
    every = [(first, who) for who in ("sbatch", overlay, "ffdl, host", "ffdl, job")]
    assert found == dict.fromkeys([(PROLOG, overlay), *plain, *ours, *every], 1)
    assert all(min(one.samples) > 0 for one in figures)

"""The benchmarks of jobs' networks: what they read, and what they make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.domain.outcome.controller_events import Event, EventKind
from tests.benchmarks import beginning
from tests.benchmarks.allocations import read_allocations
from tests.benchmarks.leftovers_table import Coming, Count, leftovers_table, more, named, together
from tests.benchmarks.nodeside import leftovers
from tests.benchmarks.traffic import gather

LOG = """\
[2026-11-22T22:55:30.661] _slurm_rpc_submit_batch_job: JobId=2 SLUID=s1 InitPrio=1 usec=331
[2026-11-22T22:55:31.001] sched: Allocate JobId=2 NodeList=n[1-2] #CPUs=2 Partition=main
[2026-11-22T22:55:31.166] _job_complete: JobId=2 WEXITSTATUS 0
[2026-11-22T22:55:33.003] sched/backfill: _start_job: Started JobId=21 in main on n[1-2]
[2026-11-22T22:55:34.250] debug:  slurm_cred_create: creating credential for JobId=2 SLUID=s1
[2026-11-22T22:55:35.500] debug:  slurm_cred_create: creating credential for JobId=3 SLUID=s2
"""
MOUNTS = """\
96 182 254:0 /cache/n1/log /var/log/slurm rw,relatime - ext4 /dev/vda rw
97 182 0:4 net:[4026532999] /run/ffdl/3/net rw shared:7 - nsfs nsfs rw
98 182 0:73 /x /run/ffdl-other/net rw - tmpfs run rw
"""


def test_network_benchmark_reads_allocation_times_in_node_time_zone() -> None:
    found = read_allocations(LOG, "+0100")
    assert set(found) == {"2", "3", "21"}
    assert found["21"] == pytest.approx(1795388133.003 - 3600)
    assert found["2"] == pytest.approx(1795388131.001 - 3600)  # later credentials are for its steps
    assert found["3"] == pytest.approx(1795388135.5 - 3600)


def test_network_benchmark_takes_job_moments_from_the_last_node() -> None:
    events = [
        Event(1, 10.0, "head", EventKind.CLAIMED, {}),
        Event(1, 11.0, "node-1", EventKind.READY, {}),
        Event(1, 10.5, "node-0", EventKind.READY, {}),
        Event(2, 12.0, "node-0", EventKind.LEARNER_STARTED, {}),
    ]
    assert beginning.moments_of(events) == {beginning.HEAD: 10.0, beginning.READY: 11.0}


def test_network_benchmark_figures_count_from_allocation() -> None:
    known = {beginning.ALLOCATION: 100.0, beginning.FIRST: 101.5, beginning.PROLOG: 0.07}
    runs = {"plain": [known, {**known, beginning.FIRST: 102.0}], "ours": [{**known, beginning.HEAD: 100.25}]}
    found = {(one.measure, one.who): list(one.samples) for one in beginning.figures_of(4, runs)}
    first = f"allocation to {beginning.FIRST}"
    assert found == {
        (beginning.PROLOG, "plain"): [0.07, 0.07],
        (beginning.PROLOG, "ours"): [0.07],
        (f"allocation to {beginning.HEAD}", "ours"): [0.25],
        (first, "plain"): [1.5, 2.0],
        (first, "ours"): [1.5],
    }


def test_network_benchmark_concatenates_probe_samples() -> None:
    one = {"stream_mb_s": [1.0], "tcp_us": [2.0, 3.0], "udp_us": [4.0], "udp_lost": [1.0]}
    assert gather([json.dumps(one), json.dumps(one)]) == {name: samples * 2 for name, samples in one.items()}


def test_leftovers_parse_mounts_links_addresses_tables_and_sockets() -> None:
    assert leftovers.namespaces_of_mounts(MOUNTS) == {"net:[4026532999]": "/run/ffdl/3/net"}
    assert leftovers.mounts_below(MOUNTS, Path("/run/ffdl")) == ["/run/ffdl/3/net"]
    links = "1: lo: <LOOPBACK> mtu 65536\n2: eth0@if5: <BROADCAST> mtu 1500\n3: vx: <UP> mtu 1450\n"
    assert leftovers.links_of(links) == ["eth0", "vx"]
    addresses = "1: lo    inet 127.0.0.1/8 scope host lo\n2: eth0    inet 10.200.0.1/16 scope global eth0\n"
    assert leftovers.addresses_of(addresses) == ["eth0 10.200.0.1/16"]
    assert leftovers.tables_of("table inet ffdl_7\ntable ip nat\n") == ["inet ffdl_7", "ip nat"]
    sockets = "   sl  local_address rem_address   st\n  9: 00000000:012B 00000000:0000 07\n"
    assert leftovers.sockets_of(sockets) == ["00000000:012B"]


def count(**names: str) -> Count:
    return named("n1", {kind: found.split() for kind, found in names.items()})


def test_leftovers_table_reports_objects_new_on_any_node() -> None:
    before = together([count(slots="1", tables=""), named("n2", {"slots": ["2"], "tables": []})])
    after = together([count(slots="", tables="a"), named("n2", {"slots": ["1"], "tables": []})])
    coming = Coming("sbatch, overlay", 20, 19, 3.5, before, more({"slots": 7, "tables": 0}, before), after)
    assert coming.left == {"slots": ["n2 1"], "tables": ["n1 a"]}
    assert leftovers_table([coming]).split("\n")[1:] == [
        "20, sbatch, overlay  slots                     2             7      1            1",
        "20, sbatch, overlay  tables                    0             0      1            1",
    ]
    values = {figure.measure: figure.samples for figure in coming.figures()}
    assert values == {"20 jobs come and go": [3.5], "of them with a network": [19.0], "left behind": [2.0]}
    assert coming.figures()[-1].plain()["left"] == {"slots": ["n2 1"], "tables": ["n1 a"]}
    clean = Coming("sbatch", 20, 0, 3.5, before, {"slots": 2, "tables": 0}, before)
    assert (clean.left, list(clean.figures()[-1].samples)) == ({}, [0.0])


def test_leftovers_keep_the_highest_count() -> None:
    assert more({"slots": 3, "tables": 0}, count(slots="1 2", tables="a")) == {"slots": 3, "tables": 1}

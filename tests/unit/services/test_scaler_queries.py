"""What the scaler shows of its decisions: status, explanation and replay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ffdl_batch.services.elastic.pool_queries import explain_size, replay_decisions, show_pools
from ffdl_batch.services.refusals import Refused
from ffdl_batch.store import StoredDecision
from tests.unit.services.conftest import Site
from tests.unit.services.pool_bench import Bench, first_shrinks_for_second, last_inputs


@pytest.fixture
def bench(site: Site) -> Bench:
    return Bench(site)


def test_status_shows_sizes_wanted_ones_and_reasons(bench: Bench) -> None:
    platform = bench.site.platform
    first, second = first_shrinks_for_second(bench)
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert (pool.name, pool.gpus, pool.paused_at, pool.problem) == ("default", 4, None, "")
    assert pool.decided_at is not None and pool.next_at == pool.decided_at + 60
    shown = {one.id: one for one in pool.jobs}
    assert (shown[first.id].gpus, shown[first.id].wanted_gpus) == (4, 2)
    assert shown[first.id].reason == "being halted to continue with 2 learners"
    assert shown[second.id].gpus == 2
    other = replace(bench.site.caller, uid=bench.site.caller.uid + 1)
    assert show_pools(platform.storage, platform.elastic_pools, other)[0].jobs == ()


def test_status_announces_no_decision_about_pool_without_jobs(bench: Bench) -> None:
    platform = bench.site.platform
    job = bench.arrive("first")
    assert show_pools(platform.storage, platform.elastic_pools, bench.site.caller)[0].next_at is not None
    bench.completes(job)
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert pool.decided_at is not None and (pool.jobs, pool.next_at) == ((), None)


def test_status_names_unknown_backend_of_pool_and_known_ones(bench: Bench) -> None:
    bench.site.set_settings(elastic={"default": replace(bench.pool, backend="slrum")})
    platform = bench.site.platform
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert pool.problem.startswith("the configuration: elastic.pools.default: there is no backend 'slrum'; known: ")
    assert "slurm" in pool.problem


def test_explanation_has_sizes_that_last_decision_compared(bench: Bench) -> None:
    platform = bench.site.platform
    first, _ = first_shrinks_for_second(bench)
    found = explain_size(platform.storage, platform.elastic_pools, bench.site.caller, first.id)
    assert (found.gpus, found.wanted_gpus, found.restart_s, found.pool_gpus, found.pool_jobs) == (4, 2, 60.0, 4, 2)
    assert [one.gpus for one in found.options] == [1, 2, 3, 4]
    assert found.remaining_s == pytest.approx(3600, rel=0.01)
    plain = bench.site.accept("plain")
    with pytest.raises(Refused, match="belongs to no pool"):
        explain_size(platform.storage, platform.elastic_pools, bench.site.caller, plain.id)


@pytest.mark.parametrize("inputs", ["", '{"gpus": 4}', "[]", '{"gpus": 4, "jobs": [{"name": "x"}]}', '{"gpus": '])
def test_damaged_or_older_last_decision_counts_as_none(bench: Bench, inputs: str) -> None:
    platform = bench.site.platform
    first, _ = first_shrinks_for_second(bench)
    lease = bench.scaler._leases["default"].named
    stored = StoredDecision("default", bench.site.clock.now() + 1, inputs, "[[4, 64]]")
    assert platform.storage.store.elastic.add_decision(lease, stored)
    (pool,) = show_pools(platform.storage, platform.elastic_pools, bench.site.caller)
    assert (pool.decided_at, pool.next_at, len(pool.jobs)) == (None, None, 2)
    found = explain_size(platform.storage, platform.elastic_pools, bench.site.caller, first.id)
    assert (found.is_newest, found.wanted_gpus) == (False, 2), "the decision before it counts"


def test_explanation_is_from_newest_decision_that_compared_sizes_of_job(bench: Bench) -> None:
    platform = bench.site.platform
    first = bench.arrive("first")
    found = explain_size(platform.storage, platform.elastic_pools, bench.site.caller, first.id)
    assert found.is_newest
    inputs = last_inputs(bench) | {"jobs": []}
    stored = StoredDecision("default", bench.site.clock.now() + 1, json.dumps(inputs), "[]")
    assert platform.storage.store.elastic.add_decision(bench.scaler._leases["default"].named, stored)
    older = explain_size(platform.storage, platform.elastic_pools, bench.site.caller, first.id)
    assert older == replace(found, is_newest=False)
    other = bench.accept("other")
    with pytest.raises(Refused, match="no stored decision about pool default compared sizes of"):
        explain_size(platform.storage, platform.elastic_pools, bench.site.caller, other.id)


def test_replay_repeats_recorded_decisions_and_finds_another_policy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = bench.site.platform
    first_shrinks_for_second(bench)

    def replayed() -> list[tuple[str, ...]]:
        found = replay_decisions(platform.storage, platform.elastic_pools, bench.site.caller, None)
        return [one.differences for one in found]

    assert replayed() == [(), ()]
    monkeypatch.setattr("ffdl_batch.elastic.policy.RANK_EXPONENT", 9.0)
    assert replayed() == [(), ()], "the objective fair has no rank"
    monkeypatch.setattr("ffdl_batch.elastic.policy.LEAST_SPEED", 1e300)
    differences = replayed()
    assert all(differences) and "the replay gives it 0 with batch 0" in differences[0][0]
    with pytest.raises(Refused, match="unknown pool 'other'; configured pools: default"):
        replay_decisions(platform.storage, platform.elastic_pools, bench.site.caller, "other")


@pytest.mark.parametrize(("gpus", "targets"), [(0, "[[4, 64], [0, 0]]"), (4, "[]")])
def test_replay_reports_decision_that_cannot_be_repeated(bench: Bench, gpus: int, targets: str) -> None:
    platform = bench.site.platform
    first_shrinks_for_second(bench)
    inputs = last_inputs(bench) | {"gpus": gpus}
    inputs["jobs"][0]["held"] = True
    stored = StoredDecision("default", bench.site.clock.now() + 1, json.dumps(inputs), targets)
    assert platform.storage.store.elastic.add_decision(bench.scaler._leases["default"].named, stored)
    found = replay_decisions(platform.storage, platform.elastic_pools, bench.site.caller, None)
    assert [bool(one.differences) for one in found] == [False, False, True]

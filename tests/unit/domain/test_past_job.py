"""Where a past job would run, and with what loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.job.past_job import LICENCES, QUEUES, SHARES, NodeGroup, PastJob, Place, Verdict, best_fit, judge

JOB = PastJob("1", "ann", "vision", "x", "gpu", "COMPLETED", 3600, nodes=2, cpus=16, memory_mib=64_000, gpus=8,
              gpu_type="A100", limit_s=7200)  # fmt: skip
GPU = Place("gpu", "slurm", (NodeGroup(4, 64, 512_000, {"a100": 8}), NodeGroup(1, 8, 8_000, {"v100": 2})),
            frozenset({"a100", "v100"}), 86_400)  # fmt: skip
CLUSTER = Place("kubernetes", "kubernetes", None, frozenset({"a100"}), None, frozenset({SHARES, LICENCES, QUEUES}))


def test_past_job_computes_resource_seconds_and_per_node_amounts() -> None:
    assert (JOB.gpu_s, JOB.cpu_s, JOB.each(JOB.gpus), JOB.each(7)) == (28_800, 57_600, 4, 4)


def test_past_job_judge_accepts_untyped_gpus_and_rejects_place_without_gpus_or_shares() -> None:
    untyped = Place("old", "slurm", (NodeGroup(9, 64, 512_000, {"": 4}),), frozenset({""}))
    for place in (GPU, untyped, Place("any", "kubernetes")):
        assert judge(JOB, place).verdict is Verdict.RUNS
    assert judge(JOB, Place("cpu", "slurm", (NodeGroup(9, 64, 512_000),), frozenset())).reasons == ("it has no GPUs",)
    shared = replace(JOB, gpus=0, gpu_type="", shares=("shard",))
    assert (judge(shared, CLUSTER).verdict, judge(shared, GPU).verdict) == (Verdict.NOT, Verdict.RUNS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_type": "h100"}, "no GPUs of type h100"),
        ({"gpus": 18, "nodes": 2}, "none of its nodes has 8 CPUs, 9 GPUs of type A100 and 31.2 GiB"),
        ({"cpus": 130}, "none of its nodes"),
        ({"memory_mib": 2_000_000}, "none of its nodes"),
        ({"nodes": 5, "gpus": 5}, "5 nodes with"),
        ({"interactive": True}, "it was interactive"),
        ({"heterogeneous": True}, "several jobs that ran as one"),
    ],
)
def test_past_job_judge_returns_not_with_reason_if_place_does_not_fit(changes: dict[str, object], reason: str) -> None:
    fit = judge(replace(JOB, **changes), GPU)  # type: ignore[arg-type]
    assert fit.verdict is Verdict.NOT and reason in fit.reasons[0]


@pytest.mark.parametrize(
    ("changes", "place", "reason"),
    [
        ({"elapsed_s": 200_000}, GPU, "3 attempts of 1-00:00:00"),
        ({"limit_s": 100_000}, GPU, "the time limit is 1-00:00:00, which was enough"),
        ({"licences": ("abaqus",), "account": ""}, CLUSTER, "licences are not counted there (abaqus)"),
        ({}, CLUSTER, "its account and priority are Slurm's"),
    ],
)
def test_past_job_judge_returns_loss_if_place_limits_job(changes: dict[str, object], place: Place, reason: str) -> None:
    fit = judge(replace(JOB, **changes), place)  # type: ignore[arg-type]
    assert fit.verdict is Verdict.LOSS and fit.reasons[0].startswith(reason)


def test_best_fit_prefers_original_place_then_lossless_place() -> None:
    other = replace(GPU, name="spare")
    found = [best_fit(JOB, places) for places in ([CLUSTER, other, GPU], [CLUSTER, other], [CLUSTER])]
    assert [fit.place.name if fit else "" for fit in found] == ["gpu", "spare", "kubernetes"]
    assert best_fit(JOB, []) is None

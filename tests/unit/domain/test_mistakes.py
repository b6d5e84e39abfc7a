"""What no backend can make a job of, and what may be a destination."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    Checkpoint,
    Egress,
    Framework,
    JobSpec,
    NetworkLevel,
    Resources,
    Role,
)
from ffdl_batch.domain.job.spec_errors import find_mistakes
from ffdl_batch.domain.launch.egress_destination import why_no_destination


def job(learners: int = 1, gpus: float = 0, gres: dict[str, int] | None = None, **batch: Any) -> JobSpec:
    resources = Resources(learners=learners, gpus=gpus, gres=gres or {})
    return JobSpec("x", Framework("custom", "i", "run"), resources=resources, batch=BatchOptions(**batch))


def roles(learners: int, **named: Role) -> JobSpec:
    return job(learners, roles=named)


def egress(*hosts: str) -> JobSpec:
    return job(network=NetworkLevel.EGRESS, egress=tuple(Egress(host, 80) for host in hosts))


def elastic(learners: int = 2, gpus: float = 0, **batch: Any) -> JobSpec:
    return job(learners, gpus, elasticity=BOUNDS, **batch)


def bounds(gpus: float = 0, learners: int = 2, **changed: Any) -> JobSpec:
    return job(learners, gpus, elasticity=replace(BOUNDS, **changed))


BOUNDS = Elastic(2, 8, 32, 512, 64, 32)
MANY = [f"h{number}" for number in range(17)]


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        (roles(3, worker=Role(2)), "learners", "3 learners, but the roles have 2 together"),
        (roles(1, ps=Role(service=True)), "batch.roles", "every role is a service"),
        (job(4097), "learners", "4097 learners, but a job has at most 4096"),
        (roles(4097, worker=Role(4097)), "batch.roles", "4097 learners, but a job has at most 4096"),
        (job(roles={"a b": Role()}), "batch.roles.a b", "cannot be the name of a role"),
        (job(roles={"1st": Role()}), "batch.roles.1st", "cannot be the name of a role"),
        (job(roles={"x" * 33: Role()}), f"batch.roles.{'x' * 33}", "cannot be the name of a role"),
        (job(gpus=1.5), "gpus", "1.5 GPUs: write a whole number, or shares of a GPU below 1"),
        (job(gpus=-1), "gpus", "-1 GPUs: write a whole number"),
        (roles(1, a=Role(1, gpus=2.5)), "batch.roles.a.gpus", "2.5 GPUs"),
        (roles(2, a=Role(1, gpus=1), b=Role(1, gpus=0.5)), "batch.roles.b.gpus", "shares of a GPU and whole GPUs"),
        (job(gpus=1, gres={"shard": 2}), "batch.gres.shard", "Slurm gives a job one of them"),
        (job(gpus=0.5, gres={"mps:a100": 2}), "batch.gres.mps:a100", "Slurm gives a job one of them"),
        (job(gres={"npu": 1, "shard": 2, "mps": 1}), "batch.gres.mps", "shard, mps: shares of a GPU"),
        (job(network=NetworkLevel.EGRESS), "batch.network.level", "level egress needs destinations"),
        (job(egress=(Egress("h", 1),)), "batch.network.allow", "mean something at level egress only, not at auto"),
        (egress("a", "300.1.1.1"), "batch.network.allow[1]", "not an IPv4 address"),
        (
            job(env={"A": "x" * 131070}),
            "batch.env.A",
            "A has 131072 bytes; Linux starts no program with more than 131071",
        ),
        (job(env={"A": "\u00e4" * 65535}), "batch.env.A", "A has 131072 bytes"),
        (job(sweep=({"A": "1"}, {"A": "x" * 131070})), "batch.sweep", "A has 131072 bytes"),
        (job(env={f"A{n}": "x" * 100_000 for n in range(20)}), "batch.env", "the job's variables have 2000090 bytes"),
        (egress("h0", *MANY), "batch.network.allow[17]", "17 destinations; level egress takes 1 to 16"),
        (elastic(array="0-3"), "batch.elastic", "the elements of an array cannot be elastic"),
        (elastic(sweep=({"A": "1"},)), "batch.elastic", "the elements of an array cannot be elastic"),
        (elastic(roles={"a": Role(1), "b": Role(1)}), "batch.elastic", "this job has several roles"),
        (
            replace(elastic(), framework=Framework("tensorflow", "2", "PS_HOSTS_COUNT=1 run")),
            "batch.elastic",
            "this job has several roles",
        ),
        (elastic(checkpoint=Checkpoint(grace_s=0)), "batch.checkpoint.grace_s", "leaves no time for a checkpoint"),
        (
            job(2, elasticity=replace(BOUNDS, in_place=True), requeue=True),
            "batch.requeue",
            "must not requeue a job with batch.elastic.in_place",
        ),
        (
            replace(bounds(in_place=True), framework=Framework("horovod", "0.13", "run")),
            "batch.elastic.in_place",
            "an MPI job cannot shrink in place",
        ),
        (elastic(1), "learners", "1 is not in the range of batch.elastic, 2 to 8"),
        (elastic(9), "learners", "9 is not in the range of batch.elastic, 2 to 8"),
        (bounds(max_learners=5000), "batch.elastic.max_learners", "5000 learners, but a job has at most 4096"),
        (bounds(max_learners=1), "batch.elastic.max_learners", "max_learners 1 is less than min_learners 2"),
        (bounds(batch_max=31), "batch.elastic.batch.max", "batch.max 31 is less than batch.min 32"),
        (bounds(start=31), "batch.elastic.batch.start", "a batch of 31 is not in the range 32 to 512"),
        (bounds(start=513), "batch.elastic.batch.start", "a batch of 513 is not in the range 32 to 512"),
        (bounds(global_batch=1000), "batch.elastic.batch", "a batch of 1000 is not in the range 32 to 512"),
        (
            bounds(per_gpu_max=15),
            "batch.elastic.min_learners",
            "with learners: 2, GPUs hold a batch of 30, which is less than batch.min 32",
        ),
        (
            bounds(8, batch_max=33),
            "batch.elastic.max_learners",
            "batch.max 33 is less than one sample for each of 64 GPUs",
        ),
        (
            bounds(learners=3, batch_max=32, start=32),
            "learners",
            "no batch from 32 to 32 can be divided evenly among 3 GPUs",
        ),
    ],
)
def test_find_mistakes_reports_path_and_cure_of_impossible_spec(spec: JobSpec, path: str, words: str) -> None:
    (mistake,) = find_mistakes(spec)
    assert mistake.path == path
    assert words in mistake.message and mistake.cure


@pytest.mark.parametrize(
    "spec",
    [
        job(gpus=0.5), job(gpus=2, gres={"npu": 1}), job(gres={"shard": 2}), job(4096),
        roles(2, ps=Role(gpus=0, service=True), worker=Role(gpus=2)), egress("h0", *MANY[:16]),
        elastic(), elastic(8, 8), bounds(batch_max=32), bounds(min_learners=1, max_learners=1, learners=1),
        replace(elastic(2), framework=Framework("horovod", "0.13", "run")),
    ],
)  # fmt: skip
def test_find_mistakes_accepts_possible_spec(spec: JobSpec) -> None:
    assert not list(find_mistakes(spec))


@pytest.mark.parametrize(
    "host", ["a", "data.example.org", "a-b.c", "a.", "192.0.2.7", "1a.2b", "0x.org", "a" * 63, ".".join(["a" * 49] * 5)]
)
def test_why_no_destination_accepts_valid_hosts_and_ports(host: str) -> None:
    assert why_no_destination(host, 1) == why_no_destination(host, 65535) == ("", "")


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("::1", 1, "'::1', port 1, cannot be a destination: networks of jobs have IPv4 alone"),
        ("300.1.1.1", 1, "'300.1.1.1', port 1, cannot be a destination: it is not an IPv4 address"),
        ("1.2.3.4.5", 1, "not an IPv4 address"),
        ("1.2.3", 1, "not an IPv4 address"),
        ("010.1.1.1", 1, "not an IPv4 address"),
        ("0x7f000001", 1, "not an IPv4 address"),
        ("host.1", 1, "not an IPv4 address"),
        *((host, 1, "cannot be a destination") for host in ("a b", "a,b", "a_b", "-a", "-foo", "a-", "a.-b", "a..b")),
        *((host, 1, "cannot be a destination") for host in ("", ".", "a" * 64, ".".join(["a" * 63] * 4), "a" * 254)),
        ("a", 0, "port 0, cannot be a destination"),
        ("a", 65536, "port 65536, cannot be a destination"),
    ],
)
def test_why_no_destination_explains_invalid_host_or_port(host: str, port: int, words: str) -> None:
    message, cure = why_no_destination(host, port)
    assert words in message and cure

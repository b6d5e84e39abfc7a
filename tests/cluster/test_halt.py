"""Halt and resume on real Slurm, for learners of every kind; each test looks at one of the jobs that ran together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.images import provide_image
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import (
    ANSWERED,
    DEAF,
    LAST,
    QUICK,
    STUBBORN,
    attempt_log,
    begins,
    free_gpus,
    let_go,
    saver_model,
    steps,
    training,
    until_logged,
)

ANSWERING = {
    "plain": "python3 train.py",
    "pipe": "python3 train.py | tee copy.txt",
    "nested": "bash -c 'python3 train.py; echo after'",
    "background": "python3 train.py & wait $!",
    "mpirun": "mpirun --oversubscribe -np 2 python3 train.py",
    # Debian builds PyTorch without libuv, on which torchrun's own rendezvous relies.
    "torchrun": "USE_LIBUV=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc_per_node 2 --rdzv_backend c10d "
    "--rdzv_conf store_type=file train.py",
}
IN_PYTORCH = ("mpirun", "torchrun")
"""Those that need the image with PyTorch and Open MPI, which only `make test-full` builds."""
GRACE_S = 120
PATIENT = f"batch: {{checkpoint: {{grace_s: {GRACE_S}}}}}"
"""Of those that answer: many learners with PyTorch at once are slow on two cores."""
REFUSING = {"deaf": DEAF, "stubborn": STUBBORN, "unheard": "python3 train.py --deaf"}
ALWAYS = ("plain", "stubborn")
"""Those of `make test`; tests/contract has the others without Slurm and containers."""
Jobs = Mapping[str, Mapping[str, Any]]


def kinds(names: Iterable[str]) -> list[Any]:
    """The names, of which `make test` runs those in ALWAYS."""
    return [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.full]) for name in names]


@pytest.fixture(scope="module")
def halted(alice: Person) -> Jobs:
    """Those of `make test`: submitted together, halted together, as they are then."""
    return halt_all(alice, {name: command for name, command in {**ANSWERING, **REFUSING}.items() if name in ALWAYS})


@pytest.fixture(scope="module")
def halted_in_full(cluster: Cluster, alice: Person) -> Jobs:
    """The others; first those that need no PyTorch."""
    others = {name: command for name, command in {**ANSWERING, **REFUSING}.items() if name not in ALWAYS}
    plain = halt_all(alice, {name: command for name, command in others.items() if name not in IN_PYTORCH})
    provide_image(cluster, "pytorch")
    return {**plain, **halt_all(alice, {name: others[name] for name in IN_PYTORCH})}


@pytest.fixture
def job(request: pytest.FixtureRequest, name: str) -> Mapping[str, Any]:
    """The job of that name, halted."""
    found: Jobs = request.getfixturevalue("halted" if name in ALWAYS else "halted_in_full")
    return found[name]


def halt_all(alice: Person, commands: Mapping[str, str]) -> Jobs:
    """The jobs of these commands, halted."""
    model = saver_model(alice)
    manifests = []
    for name, command in commands.items():
        grace = PATIENT if name in ANSWERING else QUICK
        fields = {"memory": "700MiB", "framework": f"{{name: pytorch, version: debian, command: {command!r}}}"}
        if name in IN_PYTORCH:
            text = "".join(f"{key}: {value}\n" for key, value in {"name": name, "cpus": 1, "gpus": 1, **fields}.items())
            manifests.append(alice.write(f"~/manifests/halt-{name}.yml", f"{text}{grace}\n"))
        else:
            manifests.append(training(alice, f"halt-{name}", command, grace))
    ids = dict(zip(commands, alice.submit_all(manifests, model, "--time=30", "--export=HOLD=20"), strict=True))
    for name, job_id in ids.items():
        until_logged(alice, job_id, "begin" if name in REFUSING else "step 3")
    said = alice.run("ffdl", "halt", *ids.values())
    again = alice.run("ffdl", "halt", *ids.values())
    assert said.returncode == again.returncode == 0
    return dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))


@pytest.mark.parametrize("name", kinds(ANSWERING))
def test_halt_confirms_checkpoint_of_learner_that_handles_the_request(alice: Person, job: Mapping[str, Any]) -> None:
    assert job["state"] == "HALTED", job
    (attempt,) = job["attempts"]
    assert (attempt["interruption"], attempt["checkpoint_asked"]) == ("halt", True), attempt
    assert attempt["checkpoint_confirmed"] and 0 < attempt["checkpoint_took_s"] < GRACE_S, attempt
    assert "saved" in attempt_log(alice, job, 1) and "checkpoint confirmed" in job["message"]
    assert list(job["timestamps"])[-2:] == ["STORING", "HALTED"]
    assert job["native_id"] not in alice.queue()


@pytest.mark.parametrize("name", kinds(REFUSING))
def test_halt_ends_learner_that_ignores_checkpoint_request(alice: Person, job: Mapping[str, Any]) -> None:
    assert job["state"] == "HALTED", job
    (attempt,) = job["attempts"]
    assert attempt["checkpoint_asked"] and not attempt["checkpoint_confirmed"], attempt
    assert "no checkpoint was confirmed" in job["message"]
    assert alice.logs(job["id"]).startswith("begin")


def test_halted_jobs_release_their_gpus(alice: Person, halted: Jobs) -> None:
    nodes = {node for job in halted.values() for node in job["nodes"].split(",")}
    assert nodes
    for node in nodes:
        wait_until(partial(free_gpus, alice, node), f"the GPUs of {node}")


def test_resume_continues_halted_job_from_checkpoint_with_new_resources(alice: Person, halted: Jobs) -> None:
    job_id = halted["plain"]["id"]
    let_go(alice, job_id)
    alice.run("ffdl", "resume", job_id, "--gpus", "2", "--time", "5")
    job = alice.finish(job_id)
    assert job["state"] == "COMPLETED", job
    first, second = attempt_log(alice, job, 1), attempt_log(alice, job, 2)
    (began,) = begins(second)
    assert (began["RESUME"], began["FFDL_ATTEMPT"], began["from"]) == ("1", "2", steps(first)[-1])
    assert len(began["gpus"].split(",")) == 2
    assert steps(first) + steps(second) == list(range(1, LAST + 1))
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    history = [entry for entry in alice.run("ffdl", "events", job_id).stdout.splitlines() if entry]
    assert any("HALTED" in line for line in history) and "COMPLETED" in history[-1]
    assert alice.batch_fields(job["native_id"])["TimeLimit"] == "00:05:00"


@pytest.mark.full
def test_resume_rejects_completed_job(alice: Person, halted: Jobs) -> None:
    job_id = alice.start("done", "true")
    alice.finish(job_id)
    refused = alice.run("ffdl", "resume", job_id, check=False)
    assert refused.returncode != 0 and "has completed" in refused.stderr
    assert alice.show(job_id)["state"] == "COMPLETED"


def test_halt_removes_queued_job_from_slurm_and_resume_queues_it(alice: Person) -> None:
    job_id = alice.start("later", "echo began", "--begin=now+1hour")
    job = alice.until(job_id, {"QUEUED"})
    alice.run("ffdl", "halt", "--wait", job_id)
    ended = alice.show(job_id)
    assert (ended["state"], ended["attempts"][0]["checkpoint_asked"]) == ("HALTED", False), ended
    assert job["native_id"] not in alice.queue()
    alice.run("ffdl", "resume", job_id)
    alice.until(job_id, {"QUEUED"})
    alice.run("ffdl", "cancel", job_id)
    assert alice.finish(job_id)["state"] == "CANCELLED"


@pytest.mark.full
def test_halt_right_after_submit_halts_every_job(alice: Person) -> None:
    """Whatever state it is in by then, it ends halted, or was done before."""
    model = saver_model(alice)
    ids = alice.submit_all([training(alice, f"at-once-{n}", extra=QUICK) for n in range(4)], model)
    for job_id in ids:
        alice.run("ffdl", "halt", job_id)
    assert {job["state"] for job in alice.finish_all(ids)} == {"HALTED"}


@pytest.mark.full
def test_halt_and_resume_preserve_steps_of_both_learners(alice: Person) -> None:
    job_id = alice.submit(training(alice, "two-learners", extra=ANSWERED, learners=2), saver_model(alice))
    until_logged(alice, job_id, "step 3")
    alice.run("ffdl", "halt", "--wait", job_id)
    halted = alice.show(job_id)
    assert halted["attempts"][0]["checkpoint_confirmed"], halted
    alice.run("ffdl", "resume", "--wait", job_id)
    job = alice.show(job_id)
    assert job["state"] == "COMPLETED"
    for learner in (1, 2):
        both = steps(attempt_log(alice, job, 1, learner)) + steps(attempt_log(alice, job, 2, learner))
        assert both == list(range(1, LAST + 1)), learner

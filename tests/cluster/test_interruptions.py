"""Time limits, preemption, lost nodes and dead controllers on real Slurm: the training goes on, or says why not.

What takes long (a real time limit, a node that Slurm gives up) begins before the first test, on nodes of its own, and
is looked at last. Everything else runs on n3. There the trainings that lost their nodes go on too: whoever preempts may
take them along, since Slurm does not choose by GPUs alone, and then they have a third attempt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.cluster.executions import wait_until
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import (
    ANSWERED,
    LAST,
    attempt_log,
    begins,
    free_gpus,
    history,
    is_gapless,
    let_go,
    native_id,
    saver_model,
    started,
    steps,
    training,
    until_logged,
)

SAVING = "batch: {checkpoint: {grace_s: 4}, env: {SAVE_EVERY: '2'}}"
HELD = "batch: {checkpoint: {grace_s: 60}, env: {HOLD: '50'}}"
SHORT = "batch: {checkpoint: {grace_s: 60}, env: {SAVE_EVERY: '2', STEPS: '150', HOLD: '50'}}"
TERM_ONLY = "batch: {checkpoint: {lead_s: 0}, env: {SAVE_EVERY: '2', HOLD: '50'}}"
"""Slurm is asked for no warning: then the steps get TERM at once, and the batch script nothing."""
BUSY = "n3"


def submit(
    alice: Person, name: str, *options: str, extra: str = ANSWERED, command: str = "python3 train.py", gpus: int = 0
) -> str:
    """A training on the busy node, unless the options name another."""
    manifest = training(alice, name, command, extra, gpus=gpus)
    return alice.submit(manifest, saver_model(alice), f"--nodelist={BUSY}", *options)


def begin(alice: Person, name: str, *options: str, extra: str = ANSWERED, gpus: int = 0) -> str:
    """A training that has made some steps."""
    job_id = submit(alice, name, *options, extra=extra, gpus=gpus)
    until_logged(alice, job_id, "step 5")
    return job_id


def warn(alice: Person, native_id: str) -> None:
    """What Slurm sends to the steps before the time limit (sbatch --signal=URG@...)."""
    alice.run("scancel", "--signal=URG", native_id)


def all_steps(alice: Person, job: Mapping[str, Any], since: int = 1) -> list[int]:
    """The steps of all attempts from that one on, in order."""
    numbers = (attempt["number"] for attempt in job["attempts"] if attempt["number"] >= since)
    return [step for number in numbers for step in steps(attempt_log(alice, job, number))]


def causes(job: Mapping[str, Any]) -> Sequence[str]:
    """Why each attempt ended."""
    return [attempt["interruption"] for attempt in job["attempts"]]


@pytest.fixture(scope="module", name="alice")
def patient(alice: Person) -> Iterator[Person]:
    """alice, whose trainings have more time to answer a TERM: partitions have a GraceTime beside Slurm's KillWait."""
    person = alice.at("interruptions", "[backend.slurm]\nkill_wait_s = 15\n")
    yield person
    person.kill_daemon("TERM")


@pytest.fixture(scope="module", autouse=True)
def slow(cluster: Cluster, alice: Person) -> Iterator[Mapping[str, str]]:
    """Trainings that meet something slow: a limit of a minute, a node without power."""
    deaf, endless = "python3 train.py --deaf", "batch: {checkpoint: {grace_s: 4}, env: {STEPS: '100000'}}"
    # Who answers has half of the grace period, which is more than what is left of the lead for that.
    answers = "batch: {checkpoint: {lead_s: 14, grace_s: 24}, env: {STEPS: '400'}}"
    idle = ["n1 idle", "n2 idle", "n3 idle"]
    wait_until(lambda: sorted(set(alice.run("sinfo", "-hNo", "%N %T").stdout.splitlines())) == idle, "idle nodes")
    lost = alice.submit(
        training(alice, "lost", extra=SAVING, gpus=0), saver_model(alice), "--exclude=n2", "--no-requeue"
    )
    ids = {
        "deaf": submit(alice, "limit-deaf", "--time=1", extra=endless, command=deaf),
        "limit": submit(alice, "limit", "--time=1", extra=answers),
        "lost": lost,
    }
    node = node_of(alice, lost)
    assert node != BUSY
    cluster.power_off(node)
    yield ids | {"node of lost": node}
    cluster.power_on(node)


@pytest.fixture
def cut_off(cluster: Cluster, alice: Person) -> Iterator[tuple[str, str]]:
    """A training, and its node, which has lost its link."""
    long = "batch: {env: {SAVE_EVERY: '2', STEPS: '1200'}}"
    manifest = training(alice, "cut-off", extra=long, gpus=0)
    job_id = alice.submit(manifest, saver_model(alice), "--exclude=n1", "--no-requeue")
    node = node_of(alice, job_id)
    cluster.cut(node)
    yield job_id, node
    cluster.heal(node)


def node_of(alice: Person, job_id: str) -> str:
    """The node of a training, which has made some steps."""
    until_logged(alice, job_id, "step 5")
    return str(started(alice, job_id)["nodes"])


@pytest.mark.full
def test_warned_job_continues_from_checkpoint_in_new_native_job(alice: Person) -> None:
    job_id = begin(alice, "warned", "--time=10")
    warn(alice, native_id(alice, job_id))
    job = alice.finish(job_id)
    assert job["state"] == "COMPLETED", job
    assert len(job["attempts"]) == 2 and job["attempts"][0]["checkpoint_confirmed"]
    assert job["attempts"][0]["native_id"] != job["attempts"][1]["native_id"]
    assert all_steps(alice, job) == list(range(1, LAST + 1))
    assert begins(attempt_log(alice, job, 2))[0]["RESUME"] == "1"


@pytest.mark.full
def test_job_continues_twice_while_daemon_is_down(alice: Person) -> None:
    extra = "batch: {checkpoint: {grace_s: 60}, env: {PACE: '0.2', STEPS: '150', HOLD: '20'}}"
    job_id = begin(alice, "alone", "--time=30", extra=extra)
    first = native_id(alice, job_id)
    alice.kill_daemon("KILL")
    warn(alice, first)
    until_logged(alice, job_id, "step", attempt=2)
    second = alice.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-2").stdout.split()
    assert len(second) == 1 and second[0] != first
    warn(alice, second[0])
    until_logged(alice, job_id, "step", attempt=3)
    let_go(alice, job_id)
    job = alice.finish(job_id)  # asking for it starts the daemon again
    assert job["state"] == "COMPLETED", job
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2, 3]
    assert job["attempts"][1]["native_id"] == second[0]
    # Far from the limit: by the time that is left, it was no time limit.
    assert causes(job) == ["preemption", "preemption", ""]
    assert all_steps(alice, job) == list(range(1, 151))
    assert is_gapless(history(alice, job_id))


@pytest.fixture(scope="module")
def preempted(alice: Person, bob: Person) -> Mapping[str, Mapping[str, Any]]:
    """Three trainings with a GPU each, and what they became."""
    ids = {
        "warned": submit(alice, "warned", "--partition=main", extra=HELD, gpus=1),
        "term": submit(alice, "term", "--partition=main", extra=TERM_ONLY, gpus=1),
        "spot": submit(alice, "spot", "--partition=spot", extra=TERM_ONLY, gpus=1),
    }
    return preempt(alice, bob, ids)


@pytest.fixture(scope="module")
def preempted_deaf(alice: Person, bob: Person) -> Mapping[str, Mapping[str, Any]]:
    """A training that hears nothing, and what it became."""
    command = "python3 train.py --deaf"
    ids = {"deaf": submit(alice, "deaf", "--partition=main", extra=TERM_ONLY, command=command, gpus=1)}
    return preempt(alice, bob, ids)


def preempt(alice: Person, bob: Person, ids: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
    """What these trainings became after somebody more important took all GPUs."""
    for job_id in ids.values():
        until_logged(alice, job_id, "step 5")
    first = {name: native_id(alice, job_id) for name, job_id in ids.items()}
    rival = bob.manifest("rival", "sleep 3", gpus=4)
    options = ("--partition=urgent", f"--nodelist={BUSY}")
    assert bob.finish(bob.submit(rival, bob.model("empty", {"README": ""}), *options))["state"] == "COMPLETED"
    for job_id in ids.values():
        let_go(alice, job_id)
    jobs = dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))
    assert {name: job["state"] for name, job in jobs.items()} == dict.fromkeys(ids, "COMPLETED"), jobs
    return {name: {**job, "first": first[name]} for name, job in jobs.items()}


def test_preempted_job_with_warning_continues_without_losing_steps(alice: Person, preempted: Mapping[str, Any]) -> None:
    job = preempted["warned"]
    assert causes(job) == ["preemption", ""] and job["attempts"][0]["checkpoint_confirmed"], job["attempts"]
    assert all_steps(alice, job) == list(range(1, LAST + 1))


@pytest.mark.parametrize(
    ("fixture", "name"),
    [("preempted", "term"), pytest.param("preempted_deaf", "deaf", marks=pytest.mark.full)],
)
def test_preempted_job_requeued_by_slurm_keeps_attempt_and_native_id(
    alice: Person, request: pytest.FixtureRequest, fixture: str, name: str
) -> None:
    """Whether it saved and ended at TERM, or heard nothing and was killed: Slurm starts the same job again."""
    job = request.getfixturevalue(fixture)[name]
    assert (job["native_id"], len(job["attempts"])) == (job["first"], 1), job
    assert alice.run("squeue", "-h", "--states=all", "-o", "%A", "-n", f"{job['id']}-2").stdout == ""
    log = alice.logs(job["id"])
    assert [run["FFDL_RESTART"] for run in begins(log)] == ["0", "1"]
    if name == "term":
        assert steps(log) == list(range(1, LAST + 1))
    else:
        assert begins(log)[1]["from"] >= 2 and steps(log)[-1] == LAST


def test_preempted_job_continues_in_next_attempt_when_slurm_cancels_it(
    alice: Person, preempted: Mapping[str, Any]
) -> None:
    job = preempted["spot"]
    assert causes(job) == ["preemption", ""] and job["attempts"][0]["checkpoint_confirmed"], job["attempts"]
    assert all_steps(alice, job) == list(range(1, LAST + 1))


@pytest.mark.full
def test_job_survives_scontrol_suspend_requeue_and_time_limit_update(cluster: Cluster, alice: Person) -> None:
    held, asked, limited = (submit(alice, f"verb-{n}", "--time=10", extra=SHORT) for n in range(3))
    for job_id in (held, asked, limited):
        until_logged(alice, job_id, "step 5")
    native = {job_id: native_id(alice, job_id) for job_id in (held, asked, limited)}
    cluster.run("ctl", ["scontrol", "suspend", native[held]])
    alice.run("scontrol", "requeue", native[asked])
    cluster.run("ctl", ["scontrol", "update", f"JobId={native[limited]}", "TimeLimit=20"])
    until_pending(alice, held, "SUSPENDED")
    assert alice.show(held)["state"] == "PROCESSING"
    time.sleep(12)  # longer than what a controller that hears nothing would bear
    cluster.run("ctl", ["scontrol", "resume", native[held]])
    for job_id in (held, asked, limited):
        let_go(alice, job_id)
    jobs = alice.finish_all([held, asked, limited])
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 3, jobs
    assert [job["native_id"] for job in jobs] == list(native.values())
    assert [len(begins(alice.logs(job["id"]))) for job in jobs] == [1, 2, 1]


@pytest.mark.full
def test_interruption_is_timeout_when_time_limit_was_shortened(alice: Person) -> None:
    job_id = begin(alice, "shortened", "--time=60", extra=SHORT)
    native = native_id(alice, job_id)
    alice.run("scontrol", "update", f"JobId={native}", "TimeLimit=2")
    warn(alice, native)
    until_logged(alice, job_id, "step", attempt=2)
    let_go(alice, job_id)
    job = alice.finish(job_id)
    assert (job["state"], causes(job)) == ("COMPLETED", ["timeout", ""]), job
    assert all_steps(alice, job) == list(range(1, 151))


@pytest.mark.full
def test_requeue_of_slow_checkpoint_is_not_classified_as_node_failure(alice: Person) -> None:
    """While it saves, Slurm has put the job back into its queue already."""
    command = (
        "trap 'sleep 3; echo saved > $CHECKPOINT_DIR/s; exit 0' USR2; echo begin; [ $FFDL_RESTART = 0 ] || exit 0; "
        "while :; do sleep 0.2; done"
    )
    job_id = submit(alice, "slow-answer", "--time=10", extra="batch: {checkpoint: {grace_s: 10}}", command=command)
    until_logged(alice, job_id, "begin")
    alice.run("scontrol", "requeue", native_id(alice, job_id))
    job = alice.finish(job_id)
    assert (job["state"], len(job["attempts"]), job["overrides"]) == ("COMPLETED", 1, {}), job
    (again,) = (entry["message"] for entry in history(alice, job_id) if entry["cause"] == "requeued")
    assert again.endswith("it was preempted or requeued")


def until_pending(alice: Person, job_id: str, reason: str) -> None:
    """Wait until Slurm's word on why it does not run is known."""
    deadline = time.monotonic() + 300
    while reason not in (known := alice.show(job_id))["pending_reason"] and time.monotonic() < deadline:
        time.sleep(0.5)
    assert reason in known["pending_reason"], known


@pytest.mark.full
def test_job_reports_hold_as_pending_reason_and_becomes_cancelled_after_scancel(alice: Person) -> None:
    job_id = submit(alice, "held", "--begin=now+1hour")
    native = alice.until(job_id, {"QUEUED"})["native_id"]
    alice.run("scontrol", "hold", native)
    until_pending(alice, job_id, "Held")
    alice.run("scontrol", "release", native)
    alice.run("scontrol", "update", f"JobId={native}", "StartTime=now")
    until_logged(alice, job_id, "step 5")
    alice.run("scancel", native)
    job = alice.finish(job_id)
    assert (job["state"], len(job["attempts"])) == ("CANCELLED", 1), job


@pytest.mark.full
def test_job_continues_and_frees_gpus_after_controllers_are_killed(cluster: Cluster, alice: Person) -> None:
    """Killed: the node's alone, the head alone, both. Terminated, as by a node that shuts down: both. The training
    continues from its checkpoint, and no GPU stays allocated."""
    signals = {"node": "KILL", "head": "KILL", "head|node": "KILL", "node|head": "TERM"}
    ids = {
        name: submit(alice, f"killed-{number}", "--time=10", extra=SAVING, gpus=1)
        for number, name in enumerate(signals)
    }
    for job_id in ids.values():
        until_logged(alice, job_id, "step 5")
    for name, job_id in ids.items():
        pids = cluster.run(BUSY, ["pgrep", "-u", "alice", "-f", f" ({name}) --launch .*{job_id}"]).stdout.split()
        assert len(pids) >= len(name.split("|")), (name, pids)
        # In one go: Slurm ends a step whose head is dead.
        cluster.run(BUSY, ["kill", f"-{signals[name]}", *pids], check=False)
    for job in alice.finish_all(list(ids.values())):
        assert job["state"] == "COMPLETED", job
        assert causes(job) == ["node_failure", ""], job["attempts"]
        assert steps(attempt_log(alice, job, 2))[-1] == LAST
    wait_until(lambda: free_gpus(alice, BUSY), "the GPUs")


def test_job_fails_with_c203_at_time_limit_without_checkpoint(alice: Person, slow: Mapping[str, str]) -> None:
    job = alice.finish(slow["deaf"])
    assert (job["state"], job["error_code"]) == ("FAILED", "C203"), job
    assert len(job["attempts"]) == 1 and "no checkpoint was confirmed" in job["message"]


def test_job_continues_past_real_time_limit_without_losing_steps(alice: Person, slow: Mapping[str, str]) -> None:
    job = alice.finish(slow["limit"])
    assert job["state"] == "COMPLETED", job
    assert len(job["attempts"]) >= 2 and set(causes(job)[:-1]) == {"timeout"}, job["attempts"]
    assert all_steps(alice, job) == list(range(1, 401))


def test_job_continues_on_another_node_after_node_power_loss(alice: Person, slow: Mapping[str, str]) -> None:
    job = alice.finish(slow["lost"])
    assert job["state"] == "COMPLETED", job
    assert causes(job)[0] == "node_failure" and job["nodes"] != slow["node of lost"], job["attempts"]
    saved = begins(attempt_log(alice, job, 2))[0]["from"]
    assert saved >= 4 and all_steps(alice, job, since=2) == list(range(saved + 1, LAST + 1)), job["attempts"]


@pytest.mark.full
def test_reconnected_node_writes_nothing_to_log_of_lost_attempt(
    cluster: Cluster, alice: Person, cut_off: tuple[str, str]
) -> None:
    job_id, node = cut_off
    until_logged(alice, job_id, "step", attempt=2)
    cluster.heal(node)
    job = alice.finish(job_id)
    assert job["state"] == "COMPLETED", job
    assert causes(job)[0] == "node_failure", job["attempts"]
    first = attempt_log(alice, job, 1)
    saved = begins(attempt_log(alice, job, 2))[0]["from"]
    # What the lost attempt did after the newer one began is not in what the newer ones made of the checkpoint.
    assert all_steps(alice, job, since=2) == list(range(saved + 1, 1201)), job["attempts"]
    time.sleep(2)
    assert attempt_log(alice, job, 1) == first

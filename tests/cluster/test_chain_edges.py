"""The edges of a chain of attempts on real Slurm: pending uploads, halts at odd moments, budgets, starts that fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import native_id, until_logged

NODES = ("n1", "n2", "n3")
ENOUGH = "enough"
PATIENT = (
    "trap 'date > $CHECKPOINT_DIR/state; exit 0' USR2; echo begin $FFDL_ATTEMPT $FFDL_RESTART $RESUME; "
    f"until [ -e $CHECKPOINT_DIR/{ENOUGH} ]; do sleep 0.1; done; echo done"
)
"""Saves when asked, and trains until somebody says that it is enough."""
FILES = 36000
MANY = (
    "import os, sys; root, count = sys.argv[1], int(sys.argv[2]); os.makedirs(root); "
    "open(f'{root}/0', 'w').write('x'); [os.link(f'{root}/0', f'{root}/{n}') for n in range(1, count)]"
)
"""Many names of one small file: soon made, and slow to copy to another mount."""
STORE = """\
data_stores:
  - id: here
    type: {type}
    training_data: {{container: in}}
    training_results: {{container: out}}
    connection: {connection}
"""
STUBBORN_AUTHOR = (
    "[ $RESUME = 1 ] && echo again && exit 0; trap '' TERM USR2 INT; "
    f'python3 -c "{MANY}" $RESULT_DIR/many {FILES}; echo begin; while :; do sleep 0.2; done'
)
"""Writes many results and ends by KILL only, so that hardly any time is left for storing them."""
LONG = "batch: {time: 20, checkpoint: {grace_s: 4}}"
"""Of jobs that run from the file's first test until theirs."""
NO_LIMIT = "batch: {checkpoint: {grace_s: 60}}"
GRACE_S = 8


def retry(text: str) -> str:
    """A block with these budgets, and a limit near enough for a warning to be taken for it.

    Learners have half of the grace period to answer, which is more than what is left of the lead for that.
    """
    return f"batch: {{time: 2, checkpoint: {{lead_s: 14, grace_s: 24}}, retry: {{{text}}}}}"


def let_it_end(alice: Person, job_id: str) -> None:
    """A PATIENT learner is done."""
    alice.run("touch", f"{alice.state}/jobs/{job_id}/checkpoints/{ENOUGH}")


def warn(alice: Person, native_id: str) -> None:
    """What Slurm sends to the steps before the time limit."""
    alice.run("scancel", "--signal=URG", native_id)


def warn_attempt(alice: Person, job_id: str, attempt: int) -> None:
    """Warn that attempt once its learner runs."""
    until_logged(alice, job_id, f"begin {attempt}", attempt=attempt)
    warn(alice, alice.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-{attempt}").stdout.strip())


def until_uploaded(alice: Person, job_id: str) -> dict[str, Any]:
    """The job once its first attempt has no pending upload any more."""
    deadline = time.monotonic() + 600
    while (job := alice.show(job_id))["attempts"][0]["upload_pending"]:
        assert time.monotonic() < deadline, job
        time.sleep(0.3)
    return job


@pytest.fixture(scope="module")
def place(alice: Person) -> Iterator[str]:
    """A directory that lies on another mount than homes do: files get there by copying only."""
    path = "/shared/chain-edges"
    alice.run("sh", "-c", f"rm -rf {path} && mkdir -p {path}/in {path}/out")
    alice.run("python3", "-c", MANY, f"{path}/in/many", str(FILES))
    yield path
    alice.run("rm", "-rf", path, timeout_s=600)


@pytest.fixture(scope="module")
def jobs(alice: Person, place: str) -> Mapping[str, str]:
    """Jobs of the tests with the mark `full`, which alone end them."""
    mounted = STORE.format(type="mount_volume", connection=f'{{type: host_mount, path: "{place}"}}')
    author = f'python3 -c "{MANY}" $RESULT_DIR/many {FILES}; echo written; '
    author += f"until [ -e $CHECKPOINT_DIR/{ENOUGH} ]; do sleep 0.1; done"
    manifests = {
        "storing": alice.manifest("storing", author, mounted + LONG),
        "cancelled": alice.manifest("cancelled", STUBBORN_AUTHOR, mounted + LONG),
        "preempted": alice.manifest("preempted", STUBBORN_AUTHOR, mounted + LONG),
        "failing": alice.manifest("failing", "echo begin; exit 3", retry("failures: 1")),
        "healing": alice.manifest("healing", "echo begin; [ $RESUME = 1 ] || exit 3", retry("failures: 1")),
    }
    model = alice.model("empty", {"README": "nothing here\n"})
    return dict(zip(manifests, alice.submit_all(list(manifests.values()), model), strict=True))


# --------------------------------------------------------------------------------------------- halts


@pytest.mark.full
def test_halt_while_storing_completes_job_with_all_results(alice: Person, jobs: Mapping[str, str], place: str) -> None:
    job_id = jobs["storing"]
    until_logged(alice, job_id, "written")
    let_it_end(alice, job_id)
    alice.until(job_id, {"STORING"})
    alice.run("ffdl", "halt", job_id)
    job = alice.finish(job_id)
    assert (job["state"], job["attempts"][0]["upload_pending"]) == ("COMPLETED", False), job
    assert count_stored(alice, job) == FILES


@pytest.mark.full
def test_halt_while_downloading_halts_job_that_a_resume_completes(alice: Person, place: str) -> None:
    copied = STORE.format(type="directory", connection=f'{{path: "{place}", mode: copy}}')
    job_id = alice.start("loading", "ls $DATA_DIR/many | wc -l", extra=copied + LONG)
    alice.until(job_id, {"DOWNLOADING"})
    alice.run("ffdl", "halt", job_id)
    alice.run("ffdl", "halt", job_id)
    job = alice.finish(job_id)
    assert (job["state"], job["attempts"][0]["checkpoint_asked"]) == ("HALTED", False), job
    assert job["attempts"][0]["interruption"] == "halt" and alice.logs(job_id) == ""
    assert alice.run("ffdl", "halt", job_id).returncode == 0
    alice.run("ffdl", "resume", "--wait", job_id)
    assert alice.logs(job_id) == f"{FILES}\n"


@pytest.mark.full
def test_resume_refills_exhausted_retry_budget_of_failed_job(alice: Person) -> None:
    limited = alice.start("limited", PATIENT, extra=retry("timeouts: 1"))
    capped = alice.start("capped", PATIENT, extra=retry("gpu_hours: 0.0001"))
    warn_attempt(alice, limited, 1)
    warn_attempt(alice, capped, 1)
    warn_attempt(alice, limited, 2)
    ended = dict(zip((limited, capped), alice.finish_all([limited, capped]), strict=True))
    assert [(job["state"], job["error_code"]) for job in ended.values()] == [("FAILED", "C203")] * 2, ended
    assert [len(job["attempts"]) for job in ended.values()] == [2, 1]
    assert ended[limited]["message"].endswith("batch.retry.timeouts allows 1"), ended[limited]
    assert "GPU-hours are used, batch.retry.gpu_hours is 0.0001" in ended[capped]["message"]
    assert "batch.retry.timeouts allows 1" in alice.run("ffdl", "show", limited).stdout
    alice.run("ffdl", "resume", limited)
    warn_attempt(alice, limited, 3)
    until_logged(alice, limited, "begin 4", attempt=4)
    let_it_end(alice, limited)
    job = alice.finish(limited)
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 4), job
    assert [attempt["interruption"] for attempt in job["attempts"]] == ["timeout"] * 3 + [""]


@pytest.mark.full
def test_retry_budget_for_failures_restarts_job_until_exhausted(alice: Person, jobs: Mapping[str, str]) -> None:
    failing, healing = alice.finish_all([jobs["failing"], jobs["healing"]])
    assert (failing["state"], failing["error_code"], failing["exit_code"]) == ("FAILED", "C201", 3), failing
    assert "batch.retry.failures allows 1" in failing["message"] and len(failing["attempts"]) == 2
    assert (healing["state"], len(healing["attempts"])) == ("COMPLETED", 2), healing
    assert healing["attempts"][0]["interruption"] == "failure"


def test_halt_of_suspended_job_saves_checkpoint_after_scheduler_resume(cluster: Cluster, alice: Person) -> None:
    job_id = alice.start("suspended", PATIENT, extra=f"batch: {{checkpoint: {{grace_s: {GRACE_S}}}}}")
    until_logged(alice, job_id, "begin")
    native = native_id(alice, job_id)
    cluster.scontrol("suspend", native)
    try:
        alice.run("ffdl", "halt", job_id)
        time.sleep(GRACE_S + 2)  # longer than the grace period: time in which nobody could answer does not count
        assert alice.show(job_id)["state"] == "PROCESSING"
    finally:
        cluster.scontrol("resume", native)
    job = alice.finish(job_id)
    assert (job["state"], job["attempts"][0]["checkpoint_confirmed"]) == ("HALTED", True), job


# -------------------------------------------------------------------------------------- pending uploads


def count_stored(alice: Person, job: Mapping[str, Any]) -> int:
    """How many of the many files are in the directory of results."""
    return int(alice.run("sh", "-c", 'find "$1/many" -type f -size 1c | wc -l', "sh", job["results"]).stdout)


@pytest.mark.full
def test_daemon_completes_pending_upload_of_cancelled_job(alice: Person, jobs: Mapping[str, str]) -> None:
    job_id = jobs["cancelled"]
    until_logged(alice, job_id, "begin")
    alice.run("ffdl", "cancel", job_id)
    job = alice.finish(job_id)
    assert (job["state"], job["attempts"][0]["upload_pending"]) == ("CANCELLED", True), job
    assert "Pending upload" in alice.run("ffdl", "show", job_id).stdout
    job = until_uploaded(alice, job_id)
    assert count_stored(alice, job) == FILES
    assert alice.read(f"{job['results']}/learner-1/training-log.txt") == "begin\n"
    assert "Pending upload" not in alice.run("ffdl", "show", job_id).stdout


@pytest.mark.full
def test_next_attempt_completes_pending_upload_of_preempted_attempt(alice: Person, jobs: Mapping[str, str]) -> None:
    job_id = jobs["preempted"]
    until_logged(alice, job_id, "begin")
    done = alice.run("ffdl", "drill", "--json", "preempt", job_id, check=False, timeout_s=900)
    assert done.stdout, done
    report = json.loads(done.stdout)["drill"]
    assert (done.returncode, report["confirmed"], report["next_attempt"]) == (1, False, 2), report
    job = alice.finish(job_id)
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
    uploaded = json.loads(alice.read(f"{job['job_dir']}/attempt-1/uploaded.json"))
    assert uploaded["learners"] == [1] and uploaded["host"] == job["attempts"][1]["nodes"]
    job = until_uploaded(alice, job_id)
    assert count_stored(alice, job) == FILES
    assert alice.read(f"{job['results']}/learner-1/training-log.txt") == "again\n"
    assert alice.read(f"{job['results']}/learner-1/attempt-1/training-log.txt") == "begin\n"


# ------------------------------------------------------------------------------- starts that fail


@pytest.fixture
def failing_prolog(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Makes the site's prolog fail for that one job: Slurm cannot start it, and drains the node."""
    path, mark = "/etc/slurm/prolog.d/50-ffdl", "# a prolog that fails"

    def fail_for(native_id: str) -> None:
        line = f'[ "$SLURM_JOB_ID" = {native_id} ] \\&\\& exit 1 {mark}'
        cluster.run("ctl", ["sed", "-i", f"1s|$|\\n{line}|", path])

    yield fail_for
    cluster.run("ctl", ["sed", "-i", f"/{mark}/d", path])
    for node in drained_nodes(cluster):
        cluster.scontrol("update", f"NodeName={node}", "State=RESUME")


def drained_nodes(cluster: Cluster) -> list[str]:
    """Nodes that Slurm has drained for a prolog that failed."""
    said = {node: cluster.scontrol("-o", "show", "node", node) for node in NODES}
    return [node for node, text in said.items() if "DRAIN" in text and "prolog" in text.lower()]


def test_job_continues_on_another_node_when_prolog_fails(
    cluster: Cluster, alice: Person, failing_prolog: Callable[[str], None]
) -> None:
    job_id = alice.start("unstartable", "echo begin", "--begin=now+1hour")
    native = alice.until(job_id, {"QUEUED"})["native_id"]
    failing_prolog(native)
    alice.run("scontrol", "update", f"JobId={native}", "StartTime=now")
    job = alice.finish(job_id)
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
    assert job["attempts"][0]["interruption"] == "node_failure" and job["attempts"][1]["native_id"] != native
    assert "launch failed requeued held" in alice.run("ffdl", "events", job_id).stdout.replace("_", " ")
    drained = drained_nodes(cluster)  # by Slurm, which names the node of such a start to nobody but the accounting
    assert len(drained) == 1 and job["nodes"] not in drained
    assert native not in alice.queue()


# ------------------------------------------------------------------------------- other daemons


@pytest.mark.full
def test_continuation_in_place_keeps_native_job_until_budget_is_used(alice: Person) -> None:
    other = alice.at("in-place", "[backend.slurm]\ncontinue_in_place = true\n")
    try:
        job_id = other.start("in-place", PATIENT, extra=retry("timeouts: 1"))
        until_logged(other, job_id, "begin 1 0 0")
        native = native_id(other, job_id)
        warn(other, native)
        until_logged(other, job_id, "begin 1 1 1")
        assert other.show(job_id)["native_id"] == native
        warn(other, native)
        job = other.finish(job_id)
        assert (job["state"], len(job["attempts"]), job["native_id"]) == ("FAILED", 1, native), job
        assert job["message"].endswith("batch.retry.timeouts allows 1"), job
        other.run("ffdl", "resume", job_id)
        until_logged(other, job_id, "begin 2 0 1", attempt=2)
        native = native_id(other, job_id)
        warn(other, native)
        until_logged(other, job_id, "begin 2 1 1", attempt=2)
        let_it_end(other, job_id)
        job = other.finish(job_id)
        assert (job["state"], len(job["attempts"]), job["native_id"]) == ("COMPLETED", 2, native), job
    finally:
        other.kill_daemon("TERM")


def preempt(bob: Person, *options: str) -> None:
    """Take all GPUs of n3, for a moment."""
    rival = bob.manifest("chain-rival", "sleep 1", gpus=4)
    job_id = bob.submit(rival, bob.model("empty", {"README": ""}), "--nodelist=n3", *options)
    assert bob.finish(job_id)["state"] == "COMPLETED"


@pytest.mark.full
def test_preempted_job_continues_when_daemon_starts_again(alice: Person, bob: Person) -> None:
    other = alice.at("alone", "[backend.slurm]\nkill_wait_s = 15\n")  # within the partition's GraceTime
    try:
        whole = ("--partition=spot", "--nodelist=n3", "--gres=gpu:4")
        job_id = other.start("alone", PATIENT, *whole, extra="batch: {checkpoint: {lead_s: 0}}")
        until_logged(other, job_id, "begin 1")
        other.kill_daemon("KILL")
        preempt(bob, "--partition=urgent")
        assert other.run("squeue", "-h", "-o", "%A", "-n", f"{job_id}-2").stdout == ""
        assert other.show(job_id)["attempts"]  # asking for it starts the daemon
        until_logged(other, job_id, "begin 2", attempt=2)
        let_it_end(other, job_id)
        job = other.finish(job_id)
        assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
        assert (job["attempts"][0]["interruption"], job["attempts"][0]["checkpoint_confirmed"]) == ("preemption", True)
    finally:
        other.kill_daemon("TERM")


@pytest.fixture
def preempting_qos(cluster: Cluster) -> Iterator[None]:
    """A site where QOS high preempts QOS normal (which has a GraceTime), and partitions preempt nobody."""
    for node in NODES:
        cluster.init(node)  # none is off: half a change would be left behind
    values = dict(cluster.blueprint.values)
    try:
        cluster.reconfigure({**values, "PREEMPT_TYPE": "preempt/qos"})
        yield
    finally:
        cluster.reconfigure(values)


@pytest.mark.full
def test_job_continues_from_checkpoint_after_qos_preemption(preempting_qos: None, alice: Person, bob: Person) -> None:
    job_id = alice.start("by-qos", PATIENT, "--nodelist=n3", "--gres=gpu:4", "--qos=normal", extra=NO_LIMIT)
    until_logged(alice, job_id, "begin 1")
    preempt(bob, "--qos=high")
    until_logged(alice, job_id, "begin 2", attempt=2)
    let_it_end(alice, job_id)
    job = alice.finish(job_id)
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
    assert (job["attempts"][0]["interruption"], job["attempts"][0]["checkpoint_confirmed"]) == ("preemption", True), job

"""Arrays and sweeps on real Slurm: native job arrays, one id for all, each element with a fate of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cluster.executions import counted, executions, wait_until
from tests.cluster.people import Person
from tests.cluster.trainings import ANSWERED, LAST, begins, let_go, saver_model, steps, until_logged

ECHO = (
    'echo "$FFDL_ARRAY_INDEX $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $LR/$DEPTH"; echo run >> $RESULT_DIR/runs'
)
SWEEP = "batch: {sweep: {LR: [0.1, '0.010', it's], DEPTH: [2, 4]}}"


def submit_array(alice: Person, name: str, command: str, *options: str, extra: str = "") -> tuple[str, list[str]]:
    """The array's id and those of its jobs; the learners need no GPU."""
    model = alice.model("empty", {"README": "nothing here\n"})
    return send(alice, alice.manifest(name, command, extra, gpus=0), model, *options)


def send(alice: Person, manifest: str, model: str, *options: str) -> tuple[str, list[str]]:
    """The array's id and those of its jobs."""
    printed = alice.run("ffdl-submit", "--json", *options, manifest, model).stdout
    result = json.loads(printed)["result"]
    assert re.fullmatch(r"array-[0-9a-z]{9}", result["id"]), printed
    return result["id"], result["elements"]


def elements(alice: Person, array: str) -> list[dict[str, Any]]:
    """Its jobs by index, as listed."""
    jobs: list[dict[str, Any]] = json.loads(alice.run("ffdl", "list", "--array", array, "--json").stdout)["jobs"]
    return jobs


def finish(alice: Person, array: str) -> list[dict[str, Any]]:
    """Its jobs once all have ended."""
    alice.run("ffdl", "wait", "--timeout=600", array, check=False, timeout_s=660)
    jobs = elements(alice, array)
    assert all(job["ended_at"] for job in jobs), [(job["id"], job["state"], job["message"]) for job in jobs]
    return jobs


def native_jobs(jobs: Sequence[dict[str, Any]]) -> set[str]:
    """The scheduler's jobs and arrays that they are, without the tasks' numbers."""
    return {job["native_id"].partition("_")[0] for job in jobs}


def submitted_tasks(alice: Person, array: str) -> list[str]:
    """The tasks of all native arrays that were ever submitted for it, by the accounting."""
    rows = alice.run("sacct", "-nXP", "--array", "--starttime=now-1hour", "-o", "JobID,JobName").stdout.split()
    return sorted(row.partition("|")[0] for row in rows if row.partition("|")[2].startswith(f"{array}-"))


def until_queued(alice: Person, array: str) -> list[dict[str, Any]]:
    """Its jobs once the scheduler has all of them."""
    wait_until(lambda: all(job["native_id"] for job in elements(alice, array)), f"{array} in the queue")
    return elements(alice, array)


def test_sweep_runs_as_one_native_array_with_one_job_per_element(alice: Person) -> None:
    array, ids = submit_array(alice, "sweep", ECHO, extra=SWEEP)
    jobs = finish(alice, array)
    assert [job["id"] for job in jobs] == ids
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 6, jobs
    assert len(native_jobs(jobs)) == 1
    assert [job["native_id"].partition("_")[2] for job in jobs] == [str(n) for n in range(6)]
    values = [(lr, depth) for lr in ("0.1", "0.010", "it's") for depth in ("2", "4")]
    for index, (job, (lr, depth)) in enumerate(zip(jobs, values, strict=True)):
        assert alice.logs(job["id"]).strip() == f"{index} {index} of 6: {lr}/{depth}"
        assert job["array_values"] == {"LR": lr, "DEPTH": depth}
        assert executions(alice, job["id"]) == 1
        claim = json.loads(alice.read(f"{job['job_dir']}/attempt-1/claim/owner.json"))
        assert claim["native_id"] == job["native_id"], "it claims by the id that it is listed by"
        state, code = alice.accounted(job["native_id"], "State", "ExitCode")
        assert (state, code) == ("COMPLETED", "0:0")


@pytest.mark.full
def test_array_element_failure_leaves_other_elements_completed(alice: Person) -> None:
    array, _ = submit_array(alice, "one-fails", "exit $((FFDL_ARRAY_INDEX == 7 ? 3 : 0))", "--array=5-9:2")
    jobs = finish(alice, array)
    assert [(job["array_index"], job["state"], job["exit_code"]) for job in jobs] == [
        (5, "COMPLETED", 0),
        (7, "FAILED", 3),
        (9, "COMPLETED", 0),
    ]
    assert alice.run("ffdl", "wait", array, check=False).returncode == 3
    assert json.loads(alice.run("ffdl", "show", "--json", array).stdout)["array"]["states"] == {
        "COMPLETED": 2,
        "FAILED": 1,
    }


@pytest.mark.full
def test_array_limit_is_enforced_by_native_array_throttle(alice: Person) -> None:
    array, ids = submit_array(alice, "limited", counted(4), "--array=0-5%2", "--time=5")
    natives = {job["id"]: job["native_id"] for job in until_queued(alice, array)}
    (job,) = {native.partition("_")[0] for native in natives.values()}
    assert alice.batch_fields(job)["ArrayTaskThrottle"] == "2"
    most = 0

    def seen() -> bool:
        nonlocal most
        running = alice.run("squeue", "--noheader", "--states=RUNNING", "--array", "--format=%F").stdout.split()
        most = max(most, running.count(job))
        return all(one["ended_at"] for one in elements(alice, array))

    wait_until(seen, f"the end of {array}")
    assert 1 <= most <= 2
    assert [executions(alice, job_id) for job_id in ids] == [1] * 6


@pytest.mark.full
def test_array_uses_positions_as_task_ids_for_indexes_above_max_array_size(alice: Person) -> None:
    text = alice.run("scontrol", "show", "config").stdout
    size = int(re.search(r"MaxArraySize\s*=\s*(\d+)", text)[1])  # type: ignore[index]
    array, _ = submit_array(alice, "large", ECHO, f"--array=3,{size},{size + 5}")
    jobs = finish(alice, array)
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 3, jobs
    assert [job["native_id"].partition("_")[2] for job in jobs] == ["0", "1", "2"]
    assert [alice.logs(job["id"]).split()[:2] for job in jobs] == [[str(n)] * 2 for n in (3, size, size + 5)]


@pytest.mark.full
def test_cancel_ends_one_or_all_queued_array_elements_after_daemon_kill(alice: Person) -> None:
    """squeue has all of them in one line, ``123_[0-99]``."""
    array, ids = submit_array(alice, "held", "true", "--array=0-99", "--hold")
    jobs = until_queued(alice, array)
    assert len(native_jobs(jobs)) == 1 and {job["state"] for job in jobs} == {"QUEUED"}
    alice.kill_daemon()  # the next one takes up where this one was
    assert alice.run("ffdl", "cancel", f"{array}_50").stdout.split()[0] == ids[50]
    wait_until(lambda: elements(alice, array)[50]["state"] == "CANCELLED", "the end of one")
    assert [job["state"] for job in elements(alice, array)].count("QUEUED") == 99
    assert alice.run("ffdl", "cancel", array).returncode == 0
    assert {job["state"] for job in finish(alice, array)} == {"CANCELLED"}
    assert not native_jobs(jobs) & alice.queue()


@pytest.mark.full
def test_array_element_becomes_cancelled_after_scancel_of_its_queued_task(alice: Person) -> None:
    """``scancel 123_2``: Slurm has no record of that task any more, only of others of its array."""
    array, ids = submit_array(alice, "scancelled", counted(600), "--array=0-3%1", "--time=10")
    jobs = until_queued(alice, array)
    alice.until(ids[0], {"PROCESSING"})
    native = jobs[2]["native_id"]
    alice.run("scancel", native)
    listed = alice.run("squeue", "--noheader", "--states=all", "--array", "--format=%i").stdout.split()
    assert native not in listed and jobs[1]["native_id"] in listed
    job = alice.until(ids[2], {"CANCELLED"})
    assert (job["message"], executions(alice, ids[2])) == ("cancelled in the scheduler", 0)
    states = [one["state"] for one in elements(alice, array)]
    assert states == ["PROCESSING", "QUEUED", "CANCELLED", "QUEUED"]
    alice.run("scancel", jobs[0]["native_id"])  # the next one starts
    assert alice.finish(ids[0])["state"] == "CANCELLED"
    alice.until(ids[1], {"PROCESSING"})
    alice.run("scancel", native.partition("_")[0])
    assert [one["state"] for one in finish(alice, array)] == ["CANCELLED"] * 4


@pytest.mark.full
def test_array_elements_run_once_when_daemon_dies_during_submission(alice: Person) -> None:
    """Where it dies while it marks them, those without a mark go first, as a native array of their own."""
    model = alice.model("empty", {"README": "nothing here\n"})
    manifest = alice.manifest("killed", counted(0.5), gpus=0)
    array, ids = send(alice, manifest, model, "--array=0-19")
    alice.kill_daemon()  # somewhere between the answer and the end of the submission
    jobs = finish(alice, array)
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 20, jobs
    assert [executions(alice, job_id) for job_id in ids] == [1] * 20
    natives = sorted(job["native_id"] for job in jobs)
    wait_until(lambda: set(natives) <= set(submitted_tasks(alice, array)), "the accounting of them")
    assert submitted_tasks(alice, array) == natives


@pytest.fixture(scope="module")
def interrupted(alice: Person) -> list[dict[str, Any]]:
    """Four equal elements: one is requeued by hand, one halted and resumed, one cancelled, one left alone."""
    manifest = alice.manifest("interrupted", "python3 train.py", ANSWERED, gpus=0)
    array, ids = send(
        alice, manifest, saver_model(alice), "--array=0-3", "--time=10", "--requeue", "--export=STEPS=100,HOLD=20"
    )
    for job_id in ids:
        until_logged(alice, job_id, "step 3")
    natives = [job["native_id"] for job in elements(alice, array)]
    alice.run("scontrol", "requeue", natives[0])
    alice.run("ffdl", "halt", "--wait", f"{array}_1")
    alice.run("ffdl", "cancel", f"{array}_2")
    alice.run("ffdl", "resume", array)
    until_logged(alice, ids[0], 'begin .*"FFDL_RESTART": "1"')
    for job_id in ids:
        let_go(alice, job_id)
    finish(alice, array)
    return [alice.show(job_id) for job_id in ids]


@pytest.mark.full
def test_array_element_continues_in_same_attempt_after_scontrol_requeue(
    alice: Person, interrupted: Sequence[dict[str, Any]]
) -> None:
    job = interrupted[0]
    assert (job["state"], job["attempt"]) == ("COMPLETED", 1), job
    assert [begin["FFDL_RESTART"] for begin in begins(alice.logs(job["id"]))] == ["0", "1"]


@pytest.mark.full
def test_halted_array_element_resumes_as_single_job_without_losing_steps(
    alice: Person, interrupted: Sequence[dict[str, Any]]
) -> None:
    job = interrupted[1]
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
    assert "_" in job["attempts"][0]["native_id"] and "_" not in job["attempts"][1]["native_id"]
    told = steps(alice.run("ffdl", "logs", "--attempt=all", job["id"]).stdout.replace("[attempt 1] ", "")
                 .replace("[attempt 2] ", ""))  # fmt: skip
    assert told == list(range(1, 101)), "no step twice, none left out"


@pytest.mark.full
def test_array_elements_keep_their_outcome_when_siblings_are_interrupted(interrupted: Sequence[dict[str, Any]]) -> None:
    assert [(job["state"], job["attempt"]) for job in interrupted[2:]] == [("CANCELLED", 1), ("COMPLETED", 1)]


@pytest.mark.full
def test_array_element_continues_automatically_after_time_limit(alice: Person) -> None:
    """The head's successor depends on the end of its task: ``afterany:123_1``.

    Slurm looks at limits every 30 s and warns up to 30 s early: of a minute, after 20 s at the earliest, and by then an
    attempt that goes on has ended, on a machine that is not too busy. Who answers has half of the grace period.
    """
    extra = "batch: {checkpoint: {lead_s: 10, grace_s: 16}, retry: {timeouts: 5}}"
    manifest = alice.manifest("limited-elements", "python3 train.py", extra, gpus=0)
    array, ids = send(alice, manifest, saver_model(alice), "--array=0-1", "--time=1", f"--export=STEPS={LAST}")
    for job in finish(alice, array):
        assert job["state"] == "COMPLETED", job
    for job_id in ids:
        shown = alice.show(job_id)
        *limited, last = [attempt["interruption"] for attempt in shown["attempts"]]
        assert limited and set(limited) == {"timeout"} and last == "", shown
        assert [begin["RESUME"] for begin in begins(alice.run("ffdl", "logs", "--attempt=2", job_id).stdout)] == ["1"]


@pytest.mark.full
def test_dependent_job_starts_after_all_array_elements_end(alice: Person) -> None:
    array, _ = submit_array(alice, "first", "sleep $FFDL_ARRAY_INDEX", "--array=0-3")
    last = alice.start("last", "true", f"--dependency=afterok:{array}", gpus=0)
    ended = max(job["ended_at"] for job in finish(alice, array))
    job = alice.finish(last)
    assert job["state"] == "COMPLETED" and job["timestamps"]["PROCESSING"] >= ended - 1, job

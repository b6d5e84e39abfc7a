"""What users see and can do while Slurm is away, slow or half there: a real daemon, its commands, real controllers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash.driver import LIMIT_S
from tests.crash.world import Findings, WorldOptions
from tests.faults.slurm_office import COMMANDS, SAVES, STAYS, Office

MakeOffice = Callable[[WorldOptions], Office]
TRY_AGAIN, UNAVAILABLE = 75, 69
SLOW_S = 4.0
NEVER_S = 600.0
"""The time of commands that are to be answered when a test says so."""


@pytest.fixture
def make_office(tmp_path: Path) -> Iterator[MakeOffice]:
    made: list[Office] = []

    def make(options: WorldOptions) -> Office:
        base = tmp_path / str(len(made))
        base.mkdir()
        made.append(Office(base, options))
        return made[-1]

    yield make
    for office in made:
        office.close()


@pytest.fixture
def office(make_office: MakeOffice) -> Office:
    made = make_office(WorldOptions())
    made.start()
    return made


def test_commands_and_controllers_keep_working_during_slurm_outage(office: Office) -> None:
    """Listing, submitting, logs, halts and cancels go on; what was requested and kept comes true afterwards."""
    runs, halted, cancelled = (office.accept(command) for command in (
        "echo a line of the log; " + STAYS.replace("while true", f"while ! test -e {office.base}/enough"),
        SAVES + STAYS, STAYS))  # fmt: skip
    for job_id in (runs, halted, cancelled):
        office.until(job_id, "PROCESSING")
    office.wait(lambda: sum(office.runs().values()) == 3, "three learners")
    office.spoil_all("down")
    office.wait(lambda: bool(office.outages()), "the outage to be noticed")
    before = office.asked()
    began = time.monotonic()

    listed = office.run("list")
    sentence = (
        r"ffdl: slurm unreachable since \d\d:\d\d:\d\d \(\d+ (?:s|min)\): squeue gave no answer \(1: .*Unable to "
        r"contact slurm controller \(connect failure\)\); jobs continue; states are the last known ones\n"
    )
    assert re.fullmatch(sentence, listed.stderr), listed.stderr
    assert listed.stdout.count("PROCESSING") == 3
    status = office.run("daemon", "status").stdout
    assert re.search(r"Backend: +slurm 26\.05\.5, unreachable since .* asked again at \d\d:\d\d:\d\d\n", status), status

    submitted = office.submit("")
    assert submitted.returncode == 0
    assert "jobs are stored, and submitted to it when it answers" in submitted.stderr
    kept = submitted.stdout.strip()
    assert office.show(kept)["state"] in ("PENDING", "DEPLOYING")  # it may be the one that is tried
    assert "a line of the log" in office.run("logs", runs).stdout

    for verb, job_id in (("halt", halted), ("cancel", cancelled)):
        done = office.run(verb, job_id)
        assert (done.returncode, f"{verb} requested" in done.stdout) == (0, True)
        assert "the request is stored: running jobs get it now" in done.stderr
    finals = [Path(office.state, "jobs", job_id, "attempt-1", "final.json") for job_id in (halted, cancelled)]
    office.wait(lambda: all(final.exists() for final in finals), "the controllers to obey")
    assert [json.loads(final.read_text())["outcome"] for final in finals] == ["halted", "cancelled"]
    office.wait(lambda: "does not answer" in office.show(kept)["pending_reason"], "the reason for waiting")
    assert office.show(runs)["state"] == "PROCESSING"

    asked = office.asked() - before
    assert asked.total() <= 3 + (time.monotonic() - began) / 0.75, asked
    assert not asked.keys() & {"sacct", "scancel", "scontrol"}

    office.spoil_all("")
    (office.base / "enough").touch()
    assert office.until(kept, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert office.until(halted, "HALTED", "FAILED")["state"] == "HALTED"
    assert office.until(cancelled, "CANCELLED", "FAILED")["state"] == "CANCELLED"
    assert office.until(runs, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert set(office.runs().values()) == {1} and len(office.runs()) == 4
    assert (office.outages(), office.run("list").stderr) == ((), "")


def hold_answers(office: Office, *commands: str) -> Path:
    """Commands are run, and do nothing before the file is there that is returned."""
    answer = office.base / "answer"
    for command in commands:
        begun = office.base / f"begun-{command}"
        office.wrap(command, f'touch {begun}; until [ -e {answer} ]; do sleep 0.05; done; exec "$FAKE" "$@"')
    return answer


def test_daemon_answers_promptly_and_limits_queries_when_slurm_is_slow(make_office: MakeOffice) -> None:
    """Nothing is answered; what controllers ring for is seen meanwhile. Then each command takes some seconds."""
    office = make_office(WorldOptions(timeout_s=NEVER_S))
    office.start()
    first = office.accept(STAYS.replace("while true", f"while ! test -e {office.base}/enough"))
    office.until(first, "PROCESSING")
    answer = hold_answers(office, *COMMANDS)
    office.wait((office.base / "begun-squeue").exists, "the watcher to ask")
    # Who waited for the answer would wait until the test has failed.
    assert office.run("list").returncode == 0
    office.accept("")
    office.accept("")
    assert office.run("show", first).returncode == 0
    (office.base / "enough").touch()
    office.until(first, "STORING", "COMPLETED")
    office.spoil_all(f"slow={SLOW_S:g}")
    before, began = office.asked(), time.monotonic()
    answer.touch()
    while time.monotonic() - began < 2 * SLOW_S:
        office.outages()
        time.sleep(0.2)
    asked = office.asked() - before
    most = (time.monotonic() - began) / SLOW_S
    assert asked["squeue"] <= 1 + most and asked["sbatch"] <= 2 and asked["sinfo"] <= most, asked
    office.spoil_all("")


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_daemon_deploys_later_jobs_beside_silent_sbatches_and_its_end_loses_none(
    make_office: MakeOffice, end: str
) -> None:
    """Two sbatches are silent, in a step each, when the daemon ends. They outlive it if it is killed."""
    office = make_office(WorldOptions(timeout_s=NEVER_S))
    answer, silent = office.base / "answer", [office.base / f"silent-{number}" for number in (1, 2)]
    first = " || ".join(f"mkdir {path} 2>/dev/null" for path in silent)
    office.wrap("sbatch", f'if {first}; then until [ -e {answer} ]; do sleep 0.05; done; fi; exec "$FAKE" "$@"')
    office.start()
    held: list[str] = []
    for path in silent:
        held.append(office.accept())
        office.wait(path.exists, "the sbatch that is silent")
    later = office.accept()
    assert office.until(later, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    office.accept("", "--array", "0-2")
    office.wait(lambda: len(office.accepted()) == 4, "the array to be submitted")
    assert [office.show(job)["state"] for job in held] == ["DEPLOYING"] * 2
    assert office.daemon is not None
    (office.daemon.terminate if end == "stopped" else office.daemon.kill)()
    answer.touch()
    office.daemon.wait(LIMIT_S)
    office.start()
    jobs = [str(job.id) for job in office.jobs()]
    assert [office.until(job, "COMPLETED", "FAILED")["state"] for job in jobs] == ["COMPLETED"] * 6
    assert office.examine([*held, later]) == Findings(), office.diagnosis()
    assert len(office.accepted()) == 6


def test_submit_is_refused_until_slurm_answers_once_and_accepted_in_outages_afterwards(make_office: MakeOffice) -> None:
    office = make_office(WorldOptions(timeout_s=NEVER_S))
    office.spoil_all("hang")
    office.start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(office.submit, "")
        office.wait(lambda: bool(office.calls("sinfo")), "the site to be asked")
        assert [office.run("list").returncode for _ in range(3)] == [0, 0, 0]
        assert not waiting.done()
        office.close()
    office = make_office(WorldOptions(timeout_s=6.0))
    office.spoil_all("hang")
    office.start()
    done = office.submit("")
    assert done.returncode == TRY_AGAIN, done
    assert "has never answered, so nothing was accepted: sinfo did not answer within 6 s" in done.stderr
    assert "submit again when the scheduler answers" in done.stderr
    office.spoil_all("")
    office.wait(lambda: office.submit("").returncode == 0, "a submission to be accepted")
    with office.client() as client:
        (first,) = (job.id for job in client.list())
    office.until(first, "COMPLETED")
    office.stop()
    office.spoil_all("down")
    office.start()  # it reads what the site answered the daemon before
    second = office.accept("")
    office.wait(lambda: "unreachable since before" in office.run("list").stderr, "the outage to be noticed")
    impossible = office.submit("", "--gpus", "4000")
    assert (impossible.returncode, "4000" in impossible.stderr) == (78, True)
    office.spoil_all("")
    assert office.until(second, "COMPLETED", "FAILED")["state"] == "COMPLETED"

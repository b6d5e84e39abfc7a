"""``ffdl drill`` on real Slurm: each event against a training of its own, all at once, and a trial run."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.trainings import attempt_log, begins, history, is_gapless, let_go, saver_model, steps, training

pytestmark = pytest.mark.full

# Far enough from the limit that a warning in earnest would be taken for one of a preemption. Who listens has time to,
# also where all of these start at once on a busy machine.
GRACE_S, DEAF_GRACE_S = 20, 4
LONG = f"batch: {{time: 10, checkpoint: {{grace_s: {GRACE_S}}}, env: {{STEPS: '400', HOLD: '100'}}}}"
SAVING = f"batch: {{time: 10, checkpoint: {{grace_s: {GRACE_S}}}, env: {{STEPS: '400', SAVE_EVERY: '2'}}}}"
UNHEARD = f"batch: {{time: 10, checkpoint: {{grace_s: {DEAF_GRACE_S}}}, env: {{STEPS: '400', HOLD: '100'}}}}"
LISTENING, DEAF = "python3 train.py", "python3 train.py --deaf"
COURSES: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    # name: event, command, manifest's batch block, further options of `ffdl drill`
    "timeout": ("timeout", LISTENING, LONG, ()),
    "halt": ("halt", LISTENING, LONG, ()),
    "preempt": ("preempt", LISTENING, LONG, ()),
    "node-fail": ("node-fail", LISTENING, SAVING, ("--after=3s",)),
    "deaf-timeout": ("timeout", DEAF, UNHEARD, ()),
    "deaf-halt": ("halt", DEAF, UNHEARD, ("--no-resume",)),
}
GOING_ON = ("timeout", "halt", "preempt", "node-fail")
INTERRUPTIONS = {"timeout": "timeout", "halt": "halt", "preempt": "preemption", "trial": "timeout"}
WORDS = {
    "timeout": "a drill simulated a time limit",
    "preemption": "a drill simulated a preemption",
    "halt": "a drill simulated a halt",
}


@dataclass(frozen=True)
class Drilled:
    """What a drill printed and returned, its job (None: a trial run's), and the job when all was over."""

    report: dict[str, Any]
    text: str
    status: int
    job: dict[str, Any]


@pytest.fixture(scope="module", name="alice")
def patient(alice: Person) -> Iterator[Person]:
    """alice, whose trainings have time to answer a TERM, too: no KILL of Slurm's follows those of drills."""
    person = alice.at("drills", "[backend.slurm]\nkill_wait_s = 30\n")
    yield person
    person.kill_daemon("TERM")


@pytest.fixture(scope="module")
def drilled(alice: Person) -> Iterator[dict[str, Drilled]]:
    """All drills side by side; the one of a trial run makes its own job."""
    model = saver_model(alice)
    manifests = {
        name: training(alice, f"drill-{name}", command, extra)
        for name, (_, command, extra, _) in {**COURSES, "trial": ("timeout", LISTENING, LONG, ())}.items()
    }
    ids = dict(zip(COURSES, alice.submit_all([manifests[name] for name in COURSES], model), strict=True))
    argvs = {name: ["ffdl", "drill", "--json", *COURSES[name][3], COURSES[name][0], ids[name]] for name in COURSES}
    argvs["trial"] = ["ffdl", "drill", "--json", "timeout", manifests["trial"], model, "--after=2s"]
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, argv in argvs.items():
            running[name] = alice.popen(*argv)
        said = {name: process.communicate(timeout=900)[0] for name, process in running.items()}
        reports = {name: json.loads(text.splitlines()[-1])["drill"] for name, text in said.items()}
        for job_id in ids.values():
            let_go(alice, job_id)
        ids["trial"] = reports["trial"]["job_id"]
        jobs = dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))
        yield {
            name: Drilled(reports[name], said[name], process.returncode, jobs[name])
            for name, process in running.items()
        }
    finally:
        for process in running.values():
            Cluster.kill(process)


@pytest.mark.parametrize("name", ["timeout", "halt", "preempt", "trial"])
def test_drill_confirms_checkpoint_and_reports_lead_when_learner_answers(
    drilled: dict[str, Drilled], name: str
) -> None:
    drill = drilled[name]
    report = drill.report
    assert (drill.status, report["passed"], report["asked"], report["confirmed"]) == (0, True, True, True), drill
    assert 0 < report["took_s"] <= GRACE_S
    assert (report["interruption"], report["simulated"]) == (INTERRUPTIONS[name], True), report
    assert report["message"].startswith(f"{WORDS[INTERRUPTIONS[name]]}; checkpoint confirmed"), report
    needed = math.ceil(1.5 * report["took_s"]) + 10
    default = GRACE_S + 10  # and the time for storing
    kept = {"trial": default, "timeout": max(default, needed)}.get(name, needed)
    assert (report["lead_known"], report["lead_needed_s"], report["lead_s"]) == (True, needed, kept), report
    assert report["lead_from"] == ("default" if kept == default and name in ("trial", "timeout") else "measured")
    assert (report["attempt"], report["next_attempt"]) == (1, 2)
    assert report["next_started_after_s"] > 0


def test_node_failure_drill_continues_job_from_last_saved_file(alice: Person, drilled: dict[str, Drilled]) -> None:
    drill = drilled["node-fail"]
    report = drill.report
    assert (drill.status, report["interruption"], report["next_attempt"]) == (0, "node_failure", 2), drill
    assert report["simulated"] and report["message"].startswith("a drill simulated a node failure; "), report
    assert not report["asked"] and not report["confirmed"]
    assert 0 <= report["saved_age_s"] < 100 and report["lead_needed_s"] is None
    (began,) = begins(attempt_log(alice, drill.job, 2))
    first = steps(attempt_log(alice, drill.job, 1))
    assert 2 <= began["from"] <= first[-1]
    assert "exclude" not in json.dumps(drill.job["overrides"])  # the drill took no node down


@pytest.mark.parametrize(("name", "ended", "attempts"), [("deaf-timeout", "COMPLETED", 2), ("deaf-halt", "HALTED", 1)])
def test_drill_fails_when_learner_ignores_checkpoint_request(
    drilled: dict[str, Drilled], name: str, ended: str, attempts: int
) -> None:
    drill = drilled[name]
    report = drill.report
    assert (drill.status, report["passed"], report["confirmed"], report["answered"]) == (1, False, False, False), drill
    assert report["asked"] and report["lead_needed_s"] is None
    assert report["next_attempt"] == (2 if attempts == 2 else None)
    assert "no checkpoint was confirmed" in report["message"]
    assert ("in earnest the chain would have ended" in report["message"]) == (name == "deaf-timeout")
    assert (drill.job["state"], len(drill.job["attempts"])) == (ended, attempts), drill.job


def test_drill_report_matches_job_events_and_attempts(alice: Person, drilled: dict[str, Drilled]) -> None:
    for name in ("timeout", "halt", "preempt", "node-fail", "deaf-timeout", "deaf-halt"):
        drill = drilled[name]
        assert drill.job["attempts"][0]["simulated"], drill.job
        events = history(alice, drill.job["id"])
        told = [event["message"] for event in events if event["cause"] == "requeued" or event["state"] == "HALTED"]
        assert told == [drill.report["message"]]
        assert told[0].partition(";")[0] in alice.run("ffdl", "show", drill.job["id"]).stdout


@pytest.mark.parametrize("name", GOING_ON)
def test_drilled_job_completes_from_checkpoint_in_second_attempt(
    alice: Person, drilled: dict[str, Drilled], name: str
) -> None:
    job = drilled[name].job
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 2), job
    first, second = (attempt_log(alice, job, number) for number in (1, 2))
    (began,) = begins(second)
    assert began["RESUME"] == "1" and steps(second) == list(range(began["from"] + 1, 401))
    if name != "node-fail":
        assert began["from"] == steps(first)[-1]
    assert is_gapless(history(alice, job["id"]))


def test_drill_cancels_its_trial_run(alice: Person, drilled: dict[str, Drilled]) -> None:
    job = drilled["trial"].job
    assert (job["state"], job["name"]) == ("CANCELLED", "drill-drill-trial"), job
    assert not {attempt["native_id"] for attempt in job["attempts"]} & alice.queue()


def test_drill_rejects_halted_job(alice: Person, drilled: dict[str, Drilled]) -> None:
    job_id = drilled["deaf-halt"].job["id"]
    done = alice.run("ffdl", "drill", "halt", job_id, check=False)
    assert done.returncode == 1 and f"{job_id} is HALTED" in done.stderr and "Traceback" not in done.stderr

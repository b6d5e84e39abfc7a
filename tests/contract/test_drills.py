"""``ffdl drill`` on trainings that really run: the local backend through a real daemon and real controllers.

What it reports, what the history says and what `ffdl show` prints is one and the same; and no budget is charged.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.job_state import TERMINAL
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, PLAIN, Site, site_in, until
from tests.preloaded import FFDL

NO_BUDGET = "retry: {timeouts: 0, preemptions: 0, node_failures: 0}"
TRAIN = """
import os, signal, sys, time
path = os.environ["CHECKPOINT_DIR"] + "/step"
step = int(open(path).read()) if os.path.exists(path) else 0
asked = []
if "--deaf" not in sys.argv:
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
def save():
    with open(path + ".tmp", "w") as file:
        file.write(str(step))
    os.replace(path + ".tmp", path)
print("from", step, flush=True)
while True:
    time.sleep(0.02)
    step += 1
    if asked or ("--save" in sys.argv and step % 10 == 0):
        save()
    if asked:
        sys.exit(0)
    print("step", step, flush=True)
"""


@dataclass(frozen=True)
class Machine:
    """A daemon with the local backend, and the command line that talks to it."""

    site: Site

    def popen(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return preloaded.Popen(
            [*FFDL, *map(str, arguments)],
            env=self.site.environment(),
            cwd=self.site.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return self.site.try_to(*map(str, arguments), cwd=self.site.directory, timeout=3 * LIMIT_S)

    def manifest(self, batch: str, arguments: str = "", name: str = "saver") -> Path:
        """A manifest, with the model beside it."""
        model = self.site.directory / name / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "train.py").write_text(TRAIN)
        path = model.parent / "manifest.yml"
        path.write_text(
            f"name: {name}\nlearners: 1\nmemory: 100MB\n"
            f"framework: {{name: custom, version: python-numpy, command: python3 train.py {arguments}}}\n"
            f"batch: {{{batch}}}\n"
        )
        return path

    def train(self, batch: str, arguments: str = "") -> str:
        """The id of a training of its own that has begun."""
        manifest = self.manifest(batch, arguments)
        done = self.run("submit", "--parsable", manifest, manifest.parent / "model")
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.split()[-1]
        self.until_training(job_id, 1)
        return job_id

    def until_training(self, job_id: str, number: int) -> None:
        """Until that attempt's learner has begun its loop, in the daemon's eyes too."""
        log = Path(self.attempt(job_id, number).training_log(1))
        until(lambda: log.is_file() and "step" in log.read_text(), f"attempt {number} of {job_id} to train")
        until(lambda: self.job(job_id)["state"] == "PROCESSING", f"attempt {number} of {job_id} to be PROCESSING")

    def until_saved(self, job_id: str, number: int) -> None:
        """Until that attempt of a training that saves every tenth step has surely done so."""
        log = Path(self.attempt(job_id, number).training_log(1))
        until(lambda: log.read_text().count("step") > 12, f"attempt {number} of {job_id} to save a checkpoint")

    def drill(self, event: str, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
        """The exit code and the report."""
        done = self.run("drill", "--json", event, *arguments)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)["drill"]

    def job(self, job_id: str) -> dict[str, Any]:
        reply = self.site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"]
        assert isinstance(reply, dict)
        return reply

    def attempt(self, job_id: str, number: int) -> AttemptDir:
        return JobDir(str(self.site.state / "jobs" / job_id)).attempt(number)

    def launch(self, job_id: str, number: int) -> LaunchFile:
        return decode(Path(self.attempt(job_id, number).launch).read_text())

    def end_all(self) -> None:
        """No learner may outlive the test."""
        jobs = self.site.ask("GET", "/api/v1/jobs")[1]["jobs"]
        for job in jobs:
            self.site.ask("POST", f"/api/v1/jobs/{job['id']}/cancel")
        for job in jobs:
            until(partial(self.has_ended, job["id"]), f"{job['id']} to end")

    def has_ended(self, job_id: str) -> bool:
        return self.job(job_id)["state"] in TERMINAL


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One daemon for all drills: each test ends its jobs."""
    directory = tmp_path_factory.mktemp("drills")
    config = directory / "ffdl.toml"
    config.write_text("[backend.local]\nmax_jobs = 1\n")
    environment = {"FFDL_BACKEND": "local", "FFDL_CONFIG": str(config)}
    with site_in(directory, more_environment=environment) as site:
        site.start(program=PLAIN)
        yield site


@pytest.fixture
def machine(site: Site) -> Iterator[Machine]:
    made = Machine(site)
    try:
        yield made
    finally:
        made.end_all()


def spent(launch: LaunchFile) -> Mapping[str, int]:
    """What the chain had used up when the attempt was planned."""
    assert launch.succession is not None
    told = launch.succession.spent
    return {"timeouts": told.timeouts, "preemptions": told.preemptions, "node_failures": told.node_failures}


NOTHING = {"timeouts": 0, "preemptions": 0, "node_failures": 0}


EVENTS = (
    ("timeout", "timeout", "timeouts", "a drill simulated a time limit; checkpoint confirmed after"),
    ("preempt", "preemption", "preemptions", "a drill simulated a preemption; checkpoint confirmed after"),
    ("node-fail", "node_failure", "node_failures", "a drill simulated a node failure; a checkpoint was saved"),
    ("timeout", "timeout", "timeouts", "a drill simulated a time limit; checkpoint confirmed after"),
)


def test_drills_are_recorded_and_charge_no_retry_budget(machine: Machine) -> None:
    """The limit is far away, and the manifest allows no interruption at all."""
    job_id = machine.train(f"time: 2h, {NO_BUDGET}, checkpoint: {{grace_s: 60}}", "--save")
    messages = []
    for number, (event, interruption, counter, words) in enumerate(EVENTS, 1):
        machine.until_saved(job_id, number)
        code, report = machine.drill(event, job_id)
        assert (code, report["interruption"], report["simulated"]) == (0, interruption, True), report
        assert (report["attempt"], report["next_attempt"]) == (number, number + 1)
        in_earnest = f"; in earnest the chain would have ended: batch.retry.{counter} allows 0"
        message = report["message"]
        assert message.startswith(words) and message.endswith(in_earnest), message
        messages.append(message)
        machine.until_training(job_id, number + 1)
        assert spent(machine.launch(job_id, number + 1)) == NOTHING
    told = [line for line in machine.run("events", job_id).stdout.splitlines() if "requeued: " in line]
    assert all(line.endswith(message) for line, message in zip(told, messages, strict=True)), told
    attempts, kinds = machine.job(job_id)["attempts"], [interruption for _, interruption, _, _ in EVENTS]
    assert [(each["interruption"], each["simulated"]) for each in attempts[:-1]] == [(kind, True) for kind in kinds]
    shown = machine.run("show", job_id).stdout
    assert [shown.count(words.partition(";")[0]) for *_, words in EVENTS] == [2, 1, 1, 2]


def test_time_limit_after_drill_charges_retry_budget(machine: Machine) -> None:
    """The second attempt's warning comes early, as a scheduler's may."""
    job_id = machine.train("time: '4:00', checkpoint: {grace_s: 115}")
    code, report = machine.drill("timeout", job_id)
    assert (code, report["lead_s"], report["lead_from"]) == (0, 120, "time limit"), report
    machine.until_training(job_id, 2)
    owner = json.loads(Path(machine.attempt(job_id, 2).claim_owner).read_text())
    os.kill(owner["pid"], signal.SIGURG)
    machine.until_training(job_id, 3)
    first, second = machine.job(job_id)["attempts"][:2]
    assert [(each["interruption"], each["simulated"]) for each in (first, second)] == [
        ("timeout", True), ("timeout", False),
    ]  # fmt: skip
    assert spent(machine.launch(job_id, 2)) == NOTHING
    assert spent(machine.launch(job_id, 3)) == {**NOTHING, "timeouts": 1}


def test_drill_reports_missing_checkpoint_when_learner_ignores_signal(machine: Machine) -> None:
    job_id = machine.train("time: 2h, checkpoint: {grace_s: 2}", "--deaf")
    done = machine.run("drill", "timeout", job_id[:-2])
    assert done.returncode == 1, done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert lines["Drill"].strip() == f"timeout on attempt 1 of {job_id}"
    assert lines["Ended because"].strip() == (
        "a drill simulated a time limit; no checkpoint was confirmed; "
        "in earnest the chain would have ended: it would start from the same point again"
    )
    assert lines["Checkpoint"].strip() == "asked for; the learners did not react and were ended"
    assert lines["Lead"].strip() == "nothing was measured; this job has 12 s (from: default)"
    assert lines["Next attempt"].strip().startswith("2, PROCESSING")
    assert lines["What to do"].strip().startswith("catch the checkpoint signal (batch.checkpoint.signal, USR2")


def test_drill_halt_resumes_job_with_measured_lead_time(machine: Machine) -> None:
    job_id = machine.train("time: 2h, checkpoint: {grace_s: 60}")
    code, report = machine.drill("halt", job_id)
    assert (code, report["interruption"], report["simulated"], report["next_attempt"]) == (0, "halt", True, 2), report
    assert (report["lead_s"], report["lead_from"]) == (report["lead_needed_s"], "measured")
    assert report["message"].startswith("a drill simulated a halt; checkpoint confirmed after"), report
    told = [line for line in machine.run("events", job_id).stdout.splitlines() if "HALTED" in line]
    assert len(told) == 1 and told[0].endswith(report["message"]), told
    first = machine.job(job_id)["attempts"][0]
    assert (first["interruption"], first["simulated"]) == ("halt", True)
    assert machine.run("show", job_id).stdout.count("a drill simulated a halt") == 1


def test_drill_cancels_queued_trial_run_after_queue_timeout(machine: Machine) -> None:
    busy = machine.train("time: 2h, checkpoint: {grace_s: 4}")
    trial = machine.manifest("time: 2h, checkpoint: {grace_s: 4}", name="trial")
    process = machine.popen("drill", "timeout", "--after", "0", "--timeout", "30", "--queue-timeout", "1", trial)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 124, errors
    told = errors.splitlines()
    trial_id = told[0].split()[3]
    assert told[0] == f"ffdl: trial run {trial_id} is submitted"
    waiting = "waiting until it is PROCESSING; --timeout counts from then"
    assert waiting in told[1]
    assert told[-1].endswith("after 1 s (--queue-timeout), and not PROCESSING")
    until(lambda: machine.job(trial_id)["state"] == "CANCELLED", "the trial run to be taken back")
    events = machine.site.ask("GET", f"/api/v1/jobs/{trial_id}/events")[1]["events"]
    is_at_once = "DEPLOYING" not in [event["state"] for event in events]  # no scheduler had it yet
    assert told[-2] == f"ffdl: trial run {trial_id} is {'cancelled' if is_at_once else 'being cancelled'}"
    assert (machine.job(busy)["state"], len(machine.job(busy)["attempts"])) == ("PROCESSING", 1)


def test_drill_cancels_trial_run_of_sweep_on_sigterm(machine: Machine) -> None:
    """A trial run is one job, of a sweep its first element; TERM cancels it as Ctrl-C does."""
    trial = machine.manifest("time: 2h, checkpoint: {grace_s: 4}, sweep: {LR: [0.1, 0.2]}", name="trial")
    process = machine.popen("drill", "preempt", "--after", "60", trial)
    assert process.stderr is not None
    said = line = process.stderr.readline()
    while "is submitted" not in line:  # then it knows whom to take back
        assert line, said
        line = process.stderr.readline()
        said += line
    until(lambda: [j for j in jobs_of(machine) if j["state"] == "PROCESSING"], "the trial run to begin")
    (job,) = jobs_of(machine)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    errors = said + process.communicate(timeout=LIMIT_S)[1]
    assert (job["name"], job["array_index"], job["array_values"]) == ("drill-trial[0]", 0, {"LR": "0.1"})
    assert f"trial run {job['id']} is submitted; it is element 0 of the array" in errors, errors
    assert process.returncode == 143 and f"trial run {job['id']} is being cancelled" in errors, errors
    until(lambda: machine.job(job["id"])["state"] == "CANCELLED", "the trial run to be taken back")


def jobs_of(machine: Machine) -> list[dict[str, Any]]:
    """Those that have not ended."""
    return [job for job in machine.site.ask("GET", "/api/v1/jobs")[1]["jobs"] if job["state"] not in TERMINAL]

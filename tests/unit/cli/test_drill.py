"""ffdl drill against a fake daemon that plays the course of a job."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ffdl_batch.cli.drill_report import Lead, Played, lead_needed, make_report
from ffdl_batch.domain.launch import LaunchFile, LearnerCommand, Limits, encode
from ffdl_batch.domain.views import AttemptView, EventView
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"
MANIFEST = "name: digits\nframework: {name: custom, version: custom, command: 'true'}\nmemory: 1GB\n"
CONFIRMED = AttemptView(
    1,
    "4711",
    "slurm",
    0.0,
    ended_at=109.0,
    interruption="preemption",
    checkpoint_asked=True,
    checkpoint_confirmed=True,
    checkpoint_answered=True,
    checkpoint_took_s=3.2,
    checkpoint_saved_at=1_800_000_000.0,
)
IGNORED = AttemptView(1, "4711", "slurm", 0.0, ended_at=109.0, checkpoint_asked=True, checkpoint_took_s=61.0)


@dataclass
class Stage:
    """The job on which a drill is played: what the daemon shows after the drill, and after a resume."""

    daemon: FakeDaemon
    attempt: AttemptView
    ends_as: str = "PENDING"
    goes_on: bool = True

    def begin(self, job_dir: str = "/none", state: str = "PROCESSING") -> None:
        """The job runs since its last change of state."""
        self.daemon.jobs[JOB] = make_job(JOB, state=state, job_dir=job_dir)
        self.daemon.events = [EventView(JOB, 1, 100.0, "PENDING", 1, "progress")]
        self.change("PROCESSING")
        self.daemon.jobs[JOB] = make_job(JOB, job_dir=job_dir)
        self.daemon.on_act = self.act

    def act(self, verb: str, job_id: str) -> None:
        """The daemon's side."""
        assert job_id == JOB
        if verb == "drill":
            terminal = self.ends_as in ("HALTED", "FAILED", "COMPLETED")
            self.change(self.ends_as, cause="progress" if terminal else "requeued", attempts=(self.attempt,))
        if verb == "resume" or (verb == "drill" and self.ends_as == "PENDING" and self.goes_on):
            if verb == "resume":
                self.change("PENDING", cause="resumed")
            self.change("QUEUED", attempt=2)
            self.change("PROCESSING", attempt=2)

    def change(self, state: str, cause: str = "progress", attempt: int = 1, **changes: object) -> None:
        """One change of state, 5 s after the last one."""
        last = self.daemon.events[-1]
        said = "what ended it" if state == self.ends_as else ""
        self.daemon.events.append(EventView(JOB, last.seq + 1, last.at + 5, state, attempt, cause, said))
        ended = self.daemon.events[-1].at if state in ("HALTED", "FAILED", "COMPLETED") else None
        job = replace(self.daemon.jobs[JOB], state=state, attempt=attempt, ended_at=ended)
        self.daemon.jobs[JOB] = replace(job, **changes)  # type: ignore[arg-type]


def write_launch(job_dir: Path, lead_s: int | None) -> None:
    directory = job_dir / "attempt-1"
    directory.mkdir(parents=True)
    launch = LaunchFile(JOB, 1, f"{JOB}-1", str(job_dir), str(directory), "/d", LearnerCommand((), {}))
    (directory / "launch.json").write_text(encode(replace(launch, limits=Limits(lead_s=lead_s))))


def test_a_timeout_on_a_running_job(daemon: FakeDaemon, tmp_path: Path) -> None:
    write_launch(tmp_path, 12)
    Stage(daemon, CONFIRMED).begin(str(tmp_path))
    done = run(FFDL, "drill", "timeout", JOB, daemon=daemon, env={"TZ": "UTC"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"Drill:               timeout on attempt 1 of {JOB}",
        "Ended because:       what ended it",
        "                     (a warning long before the time limit is taken for one of a preemption)",
        "Checkpoint:          asked for, confirmed after 3.2 s",
        "Newest file:         2027-01-15T08:00:00",
        "Lead:                15 s needed; this attempt's is 12 s, which is too short: "
        "write batch.checkpoint.lead_s: 15",
        "Next attempt:        2, PROCESSING 11.0 s after the attempt's end",
        "Result:              a checkpoint was confirmed",
    ]
    assert f"playing timeout on attempt 1 of {JOB}" in done.stderr
    assert daemon.acts == [("drill", JOB, {"event": "timeout"})]
    assert not any("cancel" in request for request in daemon.requests)


def test_a_halt_is_resumed_unless_that_is_not_wanted(daemon: FakeDaemon) -> None:
    stage = Stage(daemon, CONFIRMED, ends_as="HALTED")
    stage.begin()
    (document,) = json_lines(run(FFDL, "drill", "halt", "--json", JOB, daemon=daemon).stdout)
    report = document["drill"]
    assert (report["passed"], report["lead_needed_s"], report["lead_known"]) == (True, 15, False)
    assert (report["next_attempt"], report["next_started_after_s"]) == (2, 10.0)
    assert [verb for verb, _, _ in daemon.acts] == ["drill", "resume"]
    daemon.acts.clear()
    stage.begin()
    done = run(FFDL, "drill", "-Q", "halt", "--no-resume", JOB, daemon=daemon)
    assert (done.returncode, done.stderr, [verb for verb, _, _ in daemon.acts]) == (0, "", ["drill"])
    assert f"Next attempt:        none; ffdl resume {JOB} goes on" in done.stdout


def test_learners_that_do_not_react(daemon: FakeDaemon) -> None:
    Stage(daemon, IGNORED, ends_as="FAILED").begin()
    done = run(FFDL, "drill", "preempt", JOB, daemon=daemon)
    assert done.returncode == 1
    assert "Checkpoint:          asked for; the learners did not react and were ended" in done.stdout
    assert "Lead:                nothing was measured; this attempt's is not known here" in done.stdout
    assert "Next attempt:        none; the job is FAILED" in done.stdout
    assert done.stdout.endswith("Result:              no checkpoint was confirmed\n")


@pytest.mark.parametrize(
    ("saved_ago_s", "goes_on", "code", "result"),
    [
        (30.0, True, 0, "there is a checkpoint to go on from, and the next attempt started"),
        (None, True, 1, "no saved checkpoint is known"),
    ],
)
def test_a_node_failure_needs_a_saved_checkpoint(
    daemon: FakeDaemon, saved_ago_s: float | None, goes_on: bool, code: int, result: str
) -> None:
    saved_at = None if saved_ago_s is None else time.time() - saved_ago_s
    Stage(daemon, AttemptView(1, "4711", "slurm", 0.0, checkpoint_saved_at=saved_at), goes_on=goes_on).begin()
    done = run(FFDL, "drill", "node-fail", JOB, daemon=daemon)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (code, f"Result:              {result}")
    assert (" s before the event" in done.stdout) == (saved_at is not None)
    assert "Lead:" not in done.stdout


def test_a_drill_that_takes_too_long_leaves_the_job_alone(daemon: FakeDaemon) -> None:
    Stage(daemon, CONFIRMED, goes_on=False).begin()
    done = run(FFDL, "drill", "timeout", "--timeout", "0", JOB, daemon=daemon)
    assert (done.returncode, "it goes on" in done.stderr) == (124, True)
    assert not any("cancel" in request for request in daemon.requests)


def test_a_job_that_has_ended_is_not_played_on(daemon: FakeDaemon) -> None:
    daemon.jobs[JOB] = make_job(JOB, state="FAILED", ended_at=1.0, error_code="C201", message="it broke")
    done = run(FFDL, "drill", "halt", JOB, daemon=daemon)
    assert (done.returncode, daemon.acts) == (1, [])
    assert f"{JOB} is FAILED: C201 it broke; an event can be played only while a training is PROCESSING" in done.stderr
    assert run(FFDL, "drill", "halt", "training-zzzzzzzzz", daemon=daemon).returncode == 66


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A directory with a manifest, and the model beside it."""
    (tmp_path / "trial" / "model").mkdir(parents=True)
    (tmp_path / "trial" / "model" / "train.py").write_text("print('hello')\n")
    (tmp_path / "trial" / "manifest.yml").write_text(MANIFEST)
    return tmp_path / "trial"


def test_a_trial_run_is_named_played_on_and_cancelled(daemon: FakeDaemon, trial: Path) -> None:
    Stage(daemon, CONFIRMED).begin()
    done = run(FFDL, "drill", "preempt", "--after", "0.1s", "-p", "gpu", trial / "manifest.yml", daemon=daemon)
    assert done.returncode == 2, "0.1s is no span"
    done = run(FFDL, "drill", "preempt", "--after", "0.1", "-p", "gpu", trial / "manifest.yml", daemon=daemon)
    assert done.returncode == 0, done.stderr
    (sent,) = daemon.submissions.values()
    assert sent.options == {"partition": "gpu", "job-name": "drill-digits"}
    assert sent.archive in daemon.archives
    assert daemon.requests[-1] == f"POST /api/v1/jobs/{JOB}/cancel"
    assert f"trial run {JOB} is being cancelled" in done.stderr


def test_a_trial_run_is_cancelled_when_it_takes_too_long(daemon: FakeDaemon, trial: Path, model: Path) -> None:
    Stage(daemon, CONFIRMED, goes_on=False).begin()
    options = ("--after", "0", "--timeout", "0", "-J", "mine")
    done = run(FFDL, "drill", "timeout", *options, trial / "manifest.yml", model, daemon=daemon)
    assert done.returncode == 124
    assert next(iter(daemon.submissions.values())).options["job-name"] == "drill-mine"
    assert daemon.requests[-1] == f"POST /api/v1/jobs/{JOB}/cancel"


def test_a_trial_that_would_touch_shared_checkpoints_is_refused(daemon: FakeDaemon, trial: Path) -> None:
    (trial / "manifest.yml").write_text(MANIFEST + "batch: {checkpoint: {shared: true}}\n")
    done = run(FFDL, "drill", "halt", trial / "manifest.yml", daemon=daemon)
    assert (done.returncode, "checkpoints of your other jobs" in done.stderr, daemon.submissions) == (78, True, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["halt"], "a job's id, or a manifest, is needed"),
        (["halt", JOB, JOB], "one job at a time"),
        (["halt", "a", "b", "c"], "one manifest and one model at most"),
        (["power-cut", JOB], "power-cut"),
        (["halt", JOB, "--after", "soon"], "'soon' is no time span"),
        (["halt", JOB, "--after", "5m ago"], "is no time span"),
    ],
)
def test_wrong_usage(daemon: FakeDaemon, arguments: list[str], message: str) -> None:
    done = run(FFDL, "drill", *arguments, daemon=daemon)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_model_is_needed(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "m.yml").write_text(MANIFEST)
    done = run(FFDL, "drill", "halt", tmp_path / "m.yml", daemon=daemon)
    assert (done.returncode, f"there is no {tmp_path}/model" in done.stderr) == (2, True)
    assert run(FFDL, "drill", "halt", "/no/m.yml", "/no/model", daemon=daemon).returncode == 66


def entry(seq: int, state: str, cause: str = "progress", attempt: int = 1) -> EventView:
    return EventView(JOB, seq, 10.0 * seq, state, attempt, cause)


@pytest.mark.parametrize(
    ("events", "started"),
    [
        ([entry(3, "DEPLOYING", "requeued", 2), entry(4, "PROCESSING", attempt=2)], (2, 10.0)),
        ([entry(3, "QUEUED", "requeued"), entry(4, "COMPLETED")], (1, 10.0)),
        ([entry(3, "HALTED"), entry(4, "PENDING", "resumed"), entry(6, "PROCESSING", attempt=2)], (2, 20.0)),
        ([entry(3, "COMPLETED")], None),
        ([entry(3, "PENDING", "requeued"), entry(4, "FAILED")], None),
        ([], None),
    ],
)
def test_when_the_next_attempt_started(events: list[EventView], started: tuple[int, float] | None) -> None:
    before = [entry(1, "DEPLOYING", "requeued"), entry(2, "PROCESSING")]
    report = make_report(Played("timeout", 1, 20.0, 2), make_job(JOB), before + events, Lead(), trial=False)
    found = (report.next_attempt, report.next_started_after_s)
    assert found == (started or (None, None))
    assert not report.passed, "without a record of the attempt nothing is confirmed"


@pytest.mark.parametrize(("took_s", "needed"), [(0.0, 10), (0.1, 11), (3.2, 15), (60.0, 100)])
def test_the_lead_has_a_margin_and_time_to_store(took_s: float, needed: int) -> None:
    assert lead_needed(took_s) == needed


def test_every_event_is_known_to_the_daemon() -> None:
    from ffdl_batch.cli.drill_report import EVENTS
    from ffdl_batch.services.drill import DrillEvent

    assert list(EVENTS) == list(DrillEvent)

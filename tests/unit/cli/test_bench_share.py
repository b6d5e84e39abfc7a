"""`ffdl bench share` against a fake daemon: what it submits, prints and cancels."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.job.submission import Submission, SubmissionResult
from ffdl_batch.domain.job.views import AttemptView, JobView
from ffdl_batch.domain.metrics.learner_reports import GROUP, REMAINING, THROUGHPUT
from ffdl_batch.domain.metrics.records import FLOAT, Measure, MetricRecord, plain_record
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.unit.cli.programs import FFDL, environment, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon

PLAIN = "name: {name}\nframework: {{name: custom, version: custom, command: 'true'}}\nmemory: 1GB\ncpus: 2\n"
MANIFEST = PLAIN + "evaluation_metrics: {{type: regex_extractor}}\n"
QUICK = ("--seconds", "1")
TABLE = """\
a.yml:               n1:/dev/nvidia0  [together]
b.yml:               n1:/dev/nvidia0  [together]
JOB    RUN       GPUS  SAMPLES/S  SPEED  GPU-S/1000  COST/1000 EUR  TIME   COST EUR
a.yml  alone     1     100        100%   10          0.01           7 min  0.40
a.yml  together  0.5   80         80%    6.25        0.00625        8 min  0.25
b.yml  alone     1     100        100%   10          0.01           -      -
b.yml  together  0.5   45         45%    11.1        0.0111         -      -
Sharing pays: with both jobs at once, a GPU does 1.25 times as much work as with one job after the other.
a.yml costs 38% less per sample than alone, and takes 1.25 times as long.
b.yml costs 11% more per sample than alone, and takes 2.22 times as long.
"""


@dataclass
class Played:
    """Jobs that report at once: 100 samples per second alone, `speeds` with a share."""

    daemon: FakeDaemon
    speeds: tuple[float, float] = (80.0, 45.0)
    devices: tuple[str, str] = ("n1:/dev/nvidia0", "n1:/dev/nvidia0")
    silent: bool = False
    state: str = "PROCESSING"

    def __post_init__(self) -> None:
        self._accept = self.daemon.accept
        self.daemon.accept = self.accept  # type: ignore[method-assign]
        self.daemon.on_wait = self.end

    def accept(self, submission: Submission) -> SubmissionResult:
        result = self._accept(submission)
        if result.id:
            gpus = float(submission.options.get("gpus", "0").rpartition(":")[2])
            which = 0 if submission.manifest_name.endswith("a.yml") else 1
            attempt = AttemptView(1, "7", "slurm", 0.0, gpus=gpus)
            job = replace(
                self.daemon.jobs[result.id], attempts=(attempt,), gpu_devices=(self.devices[which],), state=self.state
            )
            if self.state != "PROCESSING":
                job = replace(job, ended_at=1.0)
            self.daemon.jobs[result.id] = job
            speed = self.speeds[which] if gpus < 1 else 100.0
            lines = [] if self.silent else [self.report(at, speed, which) for at in range(4)]
            self.daemon.measured[f"{result.id}/metrics"] = lines
        return result

    @staticmethod
    def report(at: int, speed: float, which: int) -> str:
        """The first job reports its whole work, too."""
        values = {THROUGHPUT: Measure(FLOAT, f"{speed if at else 1.0}")}
        if which == 0:
            values[REMAINING] = Measure(FLOAT, "40000")
        record = MetricRecord("", 1_800_000_000_000 + 500 * at, 0, "1", GROUP, {}, values)
        return json.dumps({"learner": 1, "attempt": 1, "record": plain_record(record)})

    def end(self, job_id: str) -> JobView:
        self.daemon.jobs[job_id] = replace(self.daemon.jobs[job_id], state="CANCELLED", ended_at=2.0)
        return self.daemon.jobs[job_id]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A directory with two manifests and a model for both."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text("print('hello')\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.yml").write_text(MANIFEST.format(name=name) + "gpus: 1\n")
    (tmp_path / "config.toml").write_text('[rates]\ncurrency = "EUR"\ngpu_hour = 3.6\n')
    return tmp_path


def share(daemon: FakeDaemon, pair: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {"FFDL_CONFIG": str(pair / "config.toml")}
    return run(FFDL, "bench", "share", "a.yml", "b.yml", *QUICK, *options, daemon=daemon, env=env, cwd=pair)


def cancelled(daemon: FakeDaemon) -> list[str]:
    return [request for request in daemon.requests if request.endswith("/cancel")]


def test_bench_share_prints_speeds_and_costs_and_cancels_each_run(daemon: FakeDaemon, pair: Path) -> None:
    Played(daemon)
    done = share(daemon, pair, "-p", "gpu")
    assert (done.stdout, done.returncode) == (TABLE, 0), done.stderr
    sent = [(one.manifest_name, one.options) for one in daemon.submissions.values()]
    common = {"partition": "gpu"}
    assert sent == [
        ("a.yml", {**common, "job-name": "bench-a", "gpus": "0.5"}),
        ("b.yml", {**common, "job-name": "bench-b", "gpus": "0.5", "nodelist": "n1"}),
        ("a.yml", {**common, "job-name": "bench-a", "gpus": "1", "nodelist": "n1"}),
        ("b.yml", {**common, "job-name": "bench-b", "gpus": "1", "nodelist": "n1"}),
    ]
    assert len(cancelled(daemon)) == 4
    reads = [request for request in daemon.requests if "/metrics" in request]
    assert len(reads) == 4 and all("follow=true" in request for request in reads), "each report is read once"


def test_bench_share_json_has_runs_gain_and_sentences(daemon: FakeDaemon, pair: Path) -> None:
    Played(daemon)
    (document,) = json_lines(share(daemon, pair, "--json", "-Q").stdout)
    found = document["sharing"]
    assert (found["gain"], found["pays"], found["same_device"]) == (pytest.approx(1.25), True, True)
    assert [one["together"]["speed"]["samples_per_s"] for one in found["subjects"]] == [80.0, 45.0]
    assert [one["together"]["held"]["gpus"] for one in found["subjects"]] == [0.5, 0.5]


def test_bench_share_of_mig_devices_requests_their_type_on_any_node(daemon: FakeDaemon, pair: Path) -> None:
    Played(daemon, speeds=(20.0, 20.0), devices=("n1:/dev/nvidia0", "n2:/dev/nvidia0"))
    daemon.accept = _as_share(daemon)  # type: ignore[method-assign,assignment]
    done = share(daemon, pair, "--share", "1g.10gb", "--json")
    assert done.returncode == 0, done.stderr
    options = [one.options for one in daemon.submissions.values()]
    assert [one["gpus"] for one in options] == ["1g.10gb:1", "1g.10gb:1", "1", "1"]
    assert not any("nodelist" in one for one in options)
    (document,) = json_lines(done.stdout)
    assert document["sharing"]["gain"] == pytest.approx(0.4 * 7 / 2)


def _as_share(daemon: FakeDaemon) -> Callable[[Submission], SubmissionResult]:
    """Accept as the played daemon does, with the speed of a share for each MIG device."""
    accept = daemon.accept

    def accepted(submission: Submission) -> SubmissionResult:
        result = accept(submission)
        if ":" in submission.options["gpus"]:
            which = 0 if submission.manifest_name.endswith("a.yml") else 1
            daemon.measured[f"{result.id}/metrics"] = [Played.report(at, 20.0, which) for at in range(4)]
        return result

    return accepted


def test_bench_share_reports_different_gpus_and_exits_with_1(daemon: FakeDaemon, pair: Path) -> None:
    Played(daemon, devices=("n1:/dev/nvidia0", "n1:/dev/nvidia1"))
    done = share(daemon, pair)
    assert done.returncode == 1
    assert "The jobs did not share a GPU: a.yml had n1:/dev/nvidia0, and b.yml had n1:/dev/nvidia1." in done.stdout


@pytest.mark.parametrize(
    ("played", "code", "words"),
    [
        (
            {"silent": True},
            124,
            "reported no throughput within 1 s of PROCESSING (--timeout); its first learner must print",
        ),
        ({"state": "COMPLETED"}, 1, "became COMPLETED before its measurement ended; let it train longer"),
        ({"state": "STORING"}, 1, "became FAILED before its measurement ended"),
        ({"state": "QUEUED"}, 124, "is QUEUED"),
    ],
)
def test_bench_share_cancels_runs_that_cannot_be_measured(
    daemon: FakeDaemon, pair: Path, played: dict[str, object], code: int, words: str
) -> None:
    stage = Played(daemon, **played)  # type: ignore[arg-type]
    if stage.state == "STORING":
        daemon.on_wait = lambda job_id: replace(daemon.jobs[job_id], state="FAILED", ended_at=1.0)
    accept = daemon.accept

    def alive(submission: Submission) -> SubmissionResult:
        result = accept(submission)
        if stage.state in ("QUEUED", "STORING"):
            daemon.jobs[result.id] = replace(daemon.jobs[result.id], ended_at=None, pending_reason="Resources")
        return result

    daemon.accept = alive  # type: ignore[method-assign]
    done = share(daemon, pair, "--timeout", "1", "--queue-timeout", "1")
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert len(cancelled(daemon)) == len(daemon.submissions)
    assert done.stdout == ""


def test_bench_share_ends_if_a_run_is_interrupted(daemon: FakeDaemon, pair: Path) -> None:
    Played(daemon, silent=True)

    class Preempting(dict[str, list[str]]):
        """The metrics, which are read first when the run trains. It is preempted then."""

        def get(self, key: str, default: Any = None) -> Any:
            job_id = key.partition("/")[0]
            daemon.jobs[job_id] = replace(daemon.jobs[job_id], state="QUEUED", pending_reason="Resources")
            return default

    daemon.measured = Preempting()
    done = share(daemon, pair)
    assert done.returncode == 75, done.stderr
    assert "was interrupted during the measurement and is QUEUED: Resources; run the command again" in done.stderr
    assert len(cancelled(daemon)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_share_cancels_both_runs_on_signal(daemon: FakeDaemon, pair: Path, number: signal.Signals) -> None:
    Played(daemon, silent=True)
    process = preloaded.Popen(
        [*FFDL, "bench", "share", "a.yml", "b.yml"], env=environment(daemon), cwd=pair, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    both = threading.Event()
    while not both.wait(0.02):
        assert process.poll() is None
        if any(request.startswith("GET /api/v1/jobs/training-000000002/metrics") for request in daemon.requests):
            both.set()
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    # The signal may interrupt a request; the next one is then sent again.
    assert set(cancelled(daemon)) == {f"POST /api/v1/jobs/training-00000000{job}/cancel" for job in (1, 2)}


def test_bench_share_refuses_job_whose_metrics_are_not_collected(daemon: FakeDaemon, pair: Path) -> None:
    (pair / "b.yml").write_text(PLAIN.format(name="b") + "gpus: 1\n")
    done = share(daemon, pair)
    assert (done.returncode, daemon.submissions) == (78, {})
    assert "b.yml: its throughput is not collected" in done.stderr
    assert "add evaluation_metrics: {type: regex_extractor}" in done.stderr


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ("learners: 2\ngpus: 1\n", "it has 2 learners, but only jobs with one learner can share a GPU"),
        ("gpus: 2\n", "it requests 2 GPUs, but only jobs with one GPU can share it"),
        ("batch: {gres: {shard: 1}}\n", "batch.gres requests shares"),
        (
            "gpus: 1\nbatch: {elastic: {max_learners: 2, batch: {min: 8, max: 16, per_gpu_max: 16}}}\n",
            "it is elastic, so its size could change",
        ),
        ("gpus: many\n", "has errors; to see them: ffdl validate b.yml"),
    ],
)
def test_bench_share_refuses_jobs_that_cannot_share_one_gpu(
    daemon: FakeDaemon, pair: Path, extra: str, why: str
) -> None:
    (pair / "b.yml").write_text(MANIFEST.format(name="b") + extra)
    done = share(daemon, pair)
    assert (done.returncode, why in done.stderr, daemon.submissions) == (78, True, {}), done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--share", "1"), "--share: '1' is neither a fraction of a GPU"),
        (("--share", "a100"), "--share: 'a100' is neither a fraction of a GPU"),
        (("--share", "0.6"), "--share: 0.6 and 0.6 add up to more than one GPU"),
        (("--share", "0.5", "--share", "1g.10gb"), "cannot be on the same GPU"),
        (("--share", "0.1", "--share", "0.2", "--share", "0.3"), "at most twice"),
        (("--model", "m", "--model", "m", "--model", "m"), "at most two models"),
        (("c.yml",), "two manifests are needed"),
    ],
)
def test_bench_share_refuses_wrong_options(daemon: FakeDaemon, pair: Path, options: tuple[str, ...], why: str) -> None:
    done = share(daemon, pair, *options)
    assert (done.returncode, why in done.stderr, daemon.submissions) == (2, True, {}), done.stderr


def test_bench_share_refuses_backend_with_one_slot(daemon: FakeDaemon, pair: Path) -> None:
    config = pair / "config.toml"
    config.write_text('[backend]\ndefault = "local"\n[backend.local]\nmax_jobs = 1\n')
    done = share(daemon, pair)
    assert (done.returncode, daemon.submissions) == (69, {}), done.stderr
    assert f"{config}: with backend.local.max_jobs = 1" in done.stderr and "set it to 2 or more" in done.stderr


def test_bench_share_of_jobs_without_gpus_divides_their_cpus(daemon: FakeDaemon, pair: Path) -> None:
    for name in ("a", "b"):
        (pair / f"{name}.yml").write_text(MANIFEST.format(name=name))
    Played(daemon, devices=("", ""))
    done = share(daemon, pair, "--share", "0.25")
    assert done.returncode == 0, done.stderr
    assert [one.options.get("cpus") for one in daemon.submissions.values()] == ["0.5", "0.5", None, None]
    (pair / "b.yml").write_text(MANIFEST.format(name="b") + "gpus: 1\n")
    assert "one job requests a GPU and the other does not" in share(daemon, pair).stderr
    (pair / "a.yml").write_text(MANIFEST.format(name="a") + "gpus: 1\n")

"""Logs and results of a job with three attempts: real daemon, local backend, real learners, the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, PLAIN, Site, signal_daemon, site_in, until
from tests.preloaded import FFDL

TRAIN = """\
import os, pathlib, signal, sys, time

attempt, asked = os.environ["FFDL_ATTEMPT"], []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(True))
print("begin", attempt, flush=True)
pathlib.Path(os.environ["RESULT_DIR"], "result-" + attempt).write_text(attempt)
finish = pathlib.Path(sys.argv[1], "finish-" + attempt)
while not asked and not finish.exists():
    time.sleep(0.05)
if asked:
    pathlib.Path(os.environ["CHECKPOINT_DIR"], "model").write_text(attempt)
print("end", attempt, end="", flush=True)
"""
MANIFEST = """\
name: {name}
framework:
  name: custom
  version: python-numpy
  command: {command}
cpus: 1
memory: 100MB
batch:
  time: "2:00:00"
"""


@dataclass
class Desk:
    """A user's place beside a daemon that has room for one job at a time."""

    site: Site
    base: Path
    followers: list[subprocess.Popen[str]] = field(default_factory=list)

    def try_to(self, *words: str, **options: Any) -> subprocess.CompletedProcess[Any]:
        return self.site.try_to(*words, **options)

    def run(self, *words: str) -> str:
        return self.site.run(*words)

    def submit(self, name: str, command: str) -> str:
        manifest = self.base / f"{name}.yml"
        manifest.write_text(MANIFEST.format(name=name, command=command))
        return self.run("submit", "--parsable", str(manifest), str(self.base / "model")).strip()

    def follow(self, job_id: str) -> tuple[subprocess.Popen[str], Path, Path]:
        """`ffdl logs -f` in the background, and the files of its output and errors."""
        output, errors = (self.base / f"{kind}-{len(self.followers)}" for kind in ("out", "err"))
        with output.open("w") as out, errors.open("w") as err:
            argv = [*FFDL, "logs", "-f", job_id]
            self.followers.append(
                preloaded.Popen(argv, cwd=self.base, env=self.site.environment(), stdout=out, stderr=err, text=True)
            )
        return self.followers[-1], output, errors

    def show(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(self.run("show", "--json", job_id))["job"]
        return job

    def await_text(self, path: Path, text: str) -> None:
        until(lambda: text in path.read_text(), f"{text!r} in {path}; there is {path.read_text()!r}\n{self.site.log}")

    def await_state(self, job_id: str, state: str) -> None:
        until(lambda: self.show(job_id)["state"] == state, f"{job_id} to be {state}; its log:\n{self.site.log}")


@contextmanager
def desk_in(base: Path, model: Mapping[str, str], max_jobs: int) -> Iterator[Desk]:
    """A daemon that runs at most `max_jobs` jobs at once, and a model with these files. Its jobs end with it."""
    (base / "model").mkdir()
    for name, text in model.items():
        (base / "model" / name).write_text(text)
    config = base / "ffdl.toml"
    config.write_text(f"[backend.local]\nmax_jobs = {max_jobs}\n")
    with site_in(base, more_environment={"FFDL_BACKEND": "local", "FFDL_CONFIG": str(config)}) as site:
        made = Desk(site, base)
        site.launch(program=PLAIN)
        until(site.is_served, lambda: f"the daemon to answer; its log:\n{site.log}")
        try:
            yield made
        finally:
            for follower in made.followers:
                follower.kill()
                follower.wait()
            end_jobs(made)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path, {"train.py": TRAIN}, max_jobs=1) as made:
        yield made


def end_jobs(desk: Desk) -> None:
    """No learner outlives the test."""
    for job in json.loads(desk.run("list", "--json"))["jobs"]:
        desk.run("cancel", job["id"])
    for job in json.loads(desk.run("list", "--json"))["jobs"]:
        desk.try_to("wait", "--timeout", "100", job["id"])


def test_logs_cover_every_attempt_across_halt_resume_and_daemon_kill(desk: Desk) -> None:
    job_id = desk.submit("chain", f"python3 train.py '{desk.base}'")
    first, heard, _ = desk.follow(job_id)
    desk.await_text(heard, "begin 1\n")
    desk.run("halt", "--wait", job_id)
    assert (first.wait(LIMIT_S), heard.read_text()) == (0, "begin 1\nend 1\n")

    # The second attempt is submitted and does not start.
    blocker = desk.submit("blocker", "sleep 600")
    desk.await_state(blocker, "PROCESSING")
    desk.run("resume", job_id)
    desk.await_state(job_id, "QUEUED")
    done = desk.try_to("logs", job_id)
    assert (done.returncode, done.stdout) == (0, "begin 1\nend 1\n")
    assert done.stderr == "ffdl: this is the output of attempt 1; attempt 2 has none\n"
    job = desk.show(job_id)
    assert (job["attempt"], [attempt["logs"] != "" for attempt in job["attempts"]]) == (2, [True, False])
    assert [path.name for path in Path(job["results"]).iterdir()] == ["result-1"]
    assert Path(job["logs"], "learner-1", "training-log.txt").read_text() == "begin 1\nend 1"
    assert f"Results:             {job['results']}  [attempt 1]\n" in desk.run("show", job_id)

    # A follower goes over into the second and, over the death of the daemon, into the third attempt.
    second, heard, told = desk.follow(job_id)
    desk.await_text(heard, "end 1\n")
    desk.run("cancel", blocker)
    desk.await_text(heard, "begin 2\n")
    signal_daemon(desk.site.state, signal.SIGKILL)
    desk.run("drill", "timeout", job_id)
    desk.await_text(heard, "begin 3\n")
    (desk.base / "finish-3").touch()
    assert second.wait(LIMIT_S) == 0
    assert heard.read_text() == "begin 1\nend 1\nbegin 2\nend 2\nbegin 3\nend 3\n"
    said = told.read_text().splitlines()
    assert [line for line in said if "attempt" in line] == [
        "ffdl: this is the output of attempt 1; attempt 2 has none",
        "ffdl: attempt 2 has begun",
        "ffdl: attempt 3 has begun",
    ]

    assert desk.run("logs", "--attempt", "2", job_id) == "begin 2\nend 2\n"
    every = desk.run("logs", "--attempt", "all", job_id)
    assert every == "".join(f"[attempt {n}] begin {n}\n[attempt {n}] end {n}\n" for n in (1, 2, 3))
    numbered = desk.run("loglines", "--attempt", "all", "--pos=-1", job_id).splitlines()
    assert [line.split()[:3] + line.split()[4:] for line in numbered] == [
        ["[attempt", f"{n}]", "2", "end", str(n)] for n in (1, 2, 3)
    ]
    done = desk.try_to("logs", "--attempt", "4", job_id)
    assert (done.returncode, done.stderr) == (2, f"ffdl: {job_id} has attempts 1 to 3; there is no attempt 4\n")
    job = desk.show(job_id)
    assert sorted(path.name for path in Path(job["results"]).iterdir()) == ["result-1", "result-2", "result-3"]
    for attempt in job["attempts"]:
        number = attempt["number"]
        assert (Path(attempt["results"]) / f"result-{number}").read_text() == str(number)
        assert Path(attempt["logs"], "learner-1", "training-log.txt").read_text() == f"begin {number}\nend {number}"
    assert "Traceback" not in desk.site.log


CHATTER = """\
import os, pathlib, sys, time

print("begin", flush=True)
stop, number = pathlib.Path(sys.argv[1], "stop"), 0
while not stop.exists():
    for _ in range(200):
        number += 1
        print("line", number, "x" * 80)
    print("\\r10%\\r20%", end="\\n", flush=True)
    time.sleep(0.05)
print("last", number, flush=True)
"""


def test_logs_follow_loses_no_line_across_log_rotation_and_daemon_kill(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(CHATTER)
    environment = {"FFDL_BACKEND": "local", "FFDL_LOG_FILE_SIZE": "100KiB", "FFDL_LOG_FILES": "1000"}
    with site_in(tmp_path, more_environment={**environment, "FFDL_LOG_RATE": "1GiB"}) as site:
        desk = Desk(site, tmp_path)
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        try:
            job_id = desk.submit("chatter", f"python3 train.py '{tmp_path}'")
            follower, heard, told = desk.follow(job_id)
            desk.await_text(heard, "line 2000 ")
            for number in (6000, 10_000):
                assert signal_daemon(site.state, signal.SIGKILL)
                desk.await_text(heard, f"line {number} ")
            (tmp_path / "stop").touch()
            assert follower.wait(LIMIT_S) == 0, told.read_text()
            lines = [line for line in heard.read_bytes().decode().split("\n") if "%" not in line]
            count = int(lines[-2].split()[1])
            expected = [f"line {number} {'x' * 80}" for number in range(1, count + 1)]
            assert lines == ["begin", *expected, f"last {count}", ""]
            found = desk.run("logs", job_id, "--grep", r"line (6|10)000 ", "-B", "1").splitlines()
            assert [line.split()[1] for line in found if line.startswith("line")] == ["5999", "6000", "9999", "10000"]
            assert desk.run("logs", job_id, "-n", "1") == f"last {count}\n"
            logs = sorted(path.name for path in Path(desk.show(job_id)["logs"], "learner-1").iterdir())
            assert len([name for name in logs if name.startswith("training-log.txt")]) > 8
            done = desk.try_to("logs", job_id, "--grep", "(")
            assert (done.returncode, "is not a regular expression" in done.stderr) == (2, True)
        finally:
            for process in desk.followers:
                process.kill()
                process.wait()
            end_jobs(desk)

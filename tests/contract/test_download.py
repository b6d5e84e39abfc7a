"""``ffdl download``: what a job left, from a real daemon with the local backend, and from a real S3 server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.preloaded import FFDL

TRAIN = """\
import os, pathlib, sys, time

results, attempt = pathlib.Path(os.environ["RESULT_DIR"]), os.environ["FFDL_ATTEMPT"]
(results / "deep").mkdir(exist_ok=True)
(results / "deep" / "model [1].bin").write_bytes(b"weights " + attempt.encode() * 3000000)
(results / "empty").touch()
(results / "link").symlink_to("/etc/passwd")
pathlib.Path(os.environ["CHECKPOINT_DIR"], "step").write_text("7")
print("hello", flush=True)
finish = pathlib.Path(sys.argv[1], "finish")
while not finish.exists():
    time.sleep(0.05)
(results / "last").write_text("the end")
print("goodbye", flush=True)
"""
MANIFEST = """\
name: left
framework: {{name: custom, version: python-numpy, command: python3 train.py '{base}'}}
cpus: 1
memory: 100MB
{more}"""
STORE = """\
data_stores:
- type: directory
  training_results: {{container: kept}}
  connection: {{path: '{base}/nfs'}}
"""


@dataclass
class Desk:
    """A user's place beside a daemon."""

    site: Site
    base: Path

    def ask(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """One command, which ends with that code."""
        done = preloaded.run(
            [*FFDL, *words],
            cwd=self.base / "desk",
            env={**self.site.environment(), "XDG_CACHE_HOME": str(self.base / "home")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.site.log}"
        return done

    def submit(self, more: str = "") -> str:
        """A job that has printed its first line."""
        (self.base / "manifest.yml").write_text(MANIFEST.format(base=self.base, more=more.format(base=self.base)))
        told = self.ask("submit", "--parsable", str(self.base / "manifest.yml"), str(self.base / "model"))
        job_id = told.stdout.strip()
        until(lambda: "hello" in self.ask("logs", job_id).stdout, f"the training to begin; {self.site.log}")
        until(lambda: self.site.state_of(job_id) == "PROCESSING", "the daemon to know that it did")
        return job_id

    def finish(self, job_id: str) -> dict[str, Any]:
        """Let the job end; the job."""
        (self.base / "finish").touch()
        self.ask("wait", "--timeout", "240", job_id)
        job: dict[str, Any] = json.loads(self.ask("show", "--json", job_id).stdout)["job"]
        return job


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    for name in ("model", "desk", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "train.py").write_text(TRAIN)
    with site_in(tmp_path, more_environment={"FFDL_BACKEND": "local"}) as site:
        made = Desk(site, tmp_path)
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        try:
            yield made
        finally:
            (tmp_path / "finish").touch()
            for job in json.loads(made.ask("list", "--json").stdout)["jobs"]:
                made.ask("cancel", job["id"])
                made.ask("wait", "--timeout", "240", job["id"], code=job_code(made, job["id"]))


def job_code(desk: Desk, job_id: str) -> int:
    """What waiting for the job ends with, once it has ended."""
    state = until(lambda: ended(desk, job_id), f"{job_id} to end")
    return 0 if state == "COMPLETED" else 1


def ended(desk: Desk, job_id: str) -> str:
    state = str(json.loads(desk.ask("show", "--json", job_id).stdout)["job"]["state"])
    return state if state in ("COMPLETED", "FAILED", "CANCELLED") else ""


def found_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


MODEL = b"weights " + b"1" * 3_000_000
WHILE_IT_RUNS = {"deep/model [1].bin": MODEL, "empty": b""}
RESULTS = {**WHILE_IT_RUNS, "last": b"the end"}


def test_download_fetches_results_logs_checkpoint_and_model(desk: Desk) -> None:
    """Of a running job through the daemon, of one that has ended from its directory."""
    job_id = desk.submit()
    out = desk.base / "desk" / job_id
    told = desk.ask("download", job_id)
    assert told.stderr == f"ffdl: {job_id} is PROCESSING: this is what there is now\n"
    assert found_in(out / "results") == WHILE_IT_RUNS
    assert (out / "results" / "empty").stat().st_mtime > 1e9
    desk.ask("download", "--logs", job_id)
    assert found_in(out / "logs")["learner-1/training-log.txt"] == b"hello\n"

    desk.finish(job_id)
    told = desk.ask("download", job_id)  # what an earlier call brought is replaced
    assert "3 files brought to " in told.stdout
    assert found_in(out / "results") == RESULTS
    done = json.loads(desk.ask("download", job_id, "--json", "-Q").stdout)["done"]
    assert (done["kept"], done["bytes"]) == (3, 0)
    desk.ask("download", "--logs", job_id)
    assert found_in(out / "logs")["learner-1/training-log.txt"] == b"hello\ngoodbye\n"
    desk.ask("download", "--checkpoint", job_id, "--out", "saved")
    assert found_in(desk.base / "desk" / "saved") == {"step": b"7"}
    desk.ask("download", "--model", job_id[:14], "--attempt", "1")
    assert list(found_in(out / "model")) == ["model.zip"]
    told = desk.ask("download", "--model", "--checkpoint", job_id, "--out", "both", "--json")
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(line["kind"], line["done"]["files"]) for line in lines] == [("model", 1), ("checkpoint", 1)]
    assert sorted(found_in(desk.base / "desk" / "both")) == ["checkpoint/step", "model/model.zip"]
    desk.ask("download", "--results", "--model", job_id)
    assert found_in(out / "results") == RESULTS
    assert not list((desk.base / "home").rglob("sent"))


def test_download_keeps_differing_local_files_without_force(desk: Desk) -> None:
    job_id = desk.submit()
    out = desk.base / "desk" / "mine"
    out.mkdir()
    (out / "empty").write_text("my own")
    refused = desk.ask("download", job_id, "--out", "mine", code=1)
    assert "not what the store has (empty)" in refused.stderr
    assert "have them replaced (--force)" in refused.stderr
    assert found_in(out) == {"empty": b"my own"}
    desk.finish(job_id)
    desk.ask("download", job_id, "--out", "mine", code=1)
    desk.ask("download", job_id, "--out", "mine", "--force")
    assert found_in(out) == RESULTS
    (out / "last").write_text("altered")
    desk.ask("download", job_id, "--out", "mine", code=1)


def test_download_fetches_results_from_directory_store_of_manifest(desk: Desk) -> None:
    (desk.base / "nfs").mkdir()
    job_id = desk.submit(STORE)
    job = desk.finish(job_id)
    assert job["results"] == str(desk.base / "nfs" / "kept" / job_id)
    desk.ask("download", job_id)
    got = found_in(desk.base / "desk" / job_id / "results")
    assert {name: got[name] for name in RESULTS} == RESULTS
    assert {"learner-1/training-log.txt", "_submitted_code/model.zip"} < set(got)
    desk.ask("download", job_id, "--attempt", "1", "--out", "own")
    assert found_in(desk.base / "desk" / "own") == RESULTS
    (desk.base / "nfs" / "kept" / job_id).rename(desk.base / "nfs" / "kept" / "moved")
    gone = desk.ask("download", job_id, "--out", "again", code=1)
    assert f"{job_id} has no results (any more): {job['results']} is not there" in gone.stderr


def test_download_rejects_unknown_job_or_attempt_and_file_as_output(desk: Desk) -> None:
    job_id = desk.submit()
    (desk.base / "desk" / "a-file").touch()
    assert "a-file is no directory" in desk.ask("download", job_id, "--out", "a-file", code=2).stderr
    assert "there is no attempt 2" in desk.ask("download", job_id, "--attempt", "2", code=2).stderr
    assert "there is no job" in desk.ask("download", "training-zzzzzzzzz", code=1).stderr


def test_client_fetches_results_of_ended_job_through_daemon(desk: Desk) -> None:
    job_id = desk.submit()
    desk.finish(job_id)
    program = (
        "import pathlib, sys; from ffdl_batch import Client; client = Client(); "
        "left = client.left.find(sys.argv[1]); assert not left.is_partial; "
        "print(client.left.bring(left, pathlib.Path(sys.argv[2])))"
    )
    target = desk.base / "by-wire"
    done = preloaded.run(
        [sys.executable, "-c", program, job_id, str(target)],
        env=desk.site.environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert found_in(target) == RESULTS

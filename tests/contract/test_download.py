"""``ffdl download``: the output of a job, from a real daemon with the local backend, and from a real S3 server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import Root
from ffdl_batch.host.fast_dataclass import dataclass
from tests import preloaded
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.file_modes import FFDL_AS_OTHERS
from tests.preloaded import FFDL

TRAIN = """\
import os, pathlib, socket, sys, time

results, attempt = pathlib.Path(os.environ["RESULT_DIR"]), os.environ["FFDL_ATTEMPT"]
(results / "deep").mkdir(exist_ok=True)
(results / "deep" / "model [1].bin").write_bytes(b"weights " + attempt.encode() * 3000000)
(results / "empty").touch()
(results / "link").symlink_to("/etc/passwd")
(results / "latest").symlink_to(results / "deep")
(results / "run.sh").touch(0o755)
(results / "hollow").mkdir(0o700)
os.mkfifo(results / "deep" / "pipe")
os.mkfifo(os.path.join(os.environ["CHECKPOINT_DIR"], "pipe"))
socket.socket(socket.AF_UNIX).bind(os.path.relpath(results / "talk"))
pathlib.Path(os.environ["CHECKPOINT_DIR"], "step").write_text("7")
print("hello", flush=True)
finish = pathlib.Path(sys.argv[1])
while not finish.exists():
    time.sleep(0.05)
(results / "last").write_text("the end")
print("goodbye", flush=True)
"""
MANIFEST = """\
name: left
framework: {{name: custom, version: python-numpy, command: python3 train.py '{finish}'}}
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
    jobs: dict[str, Path] = field(default_factory=dict)
    """What lets each of them end."""

    def ask(self, *words: str, code: int = 0, program: Sequence[str] = FFDL) -> subprocess.CompletedProcess[str]:
        """One command, which ends with that code."""
        env = {**self.site.environment(), "XDG_CACHE_HOME": str(self.base / "home")}
        argv, pipe = [*program, *words], subprocess.PIPE
        with preloaded.PopenTree(argv, cwd=self.base / "desk", env=env, stdout=pipe, stderr=pipe, text=True) as process:
            said = process.communicate(timeout=300)
        done = subprocess.CompletedProcess(argv, process.returncode, *said)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.site.log}"
        return done

    def submit(self, more: str = "") -> str:
        """A job that has printed its first line."""
        finish = self.base / f"finish-{len(self.jobs)}"
        (self.base / "manifest.yml").write_text(MANIFEST.format(finish=finish, more=more.format(base=self.base)))
        ran = self.ask("submit", "--parsable", str(self.base / "manifest.yml"), str(self.base / "model"))
        job_id = ran.stdout.strip()
        self.jobs[job_id] = finish
        until(lambda: self.site.state_of(job_id) == "PROCESSING", lambda: f"the training to begin; {self.site.log}")
        log = Path(Root(str(self.site.state)).job(job_id).attempt(1).training_log(1))
        until(lambda: log.exists() and "hello" in log.read_text(), "its first line")
        return job_id

    def finish(self, job_id: str) -> dict[str, Any]:
        """Let the job end; the job."""
        self.jobs[job_id].touch()
        job: dict[str, Any] = until(lambda: (found := self.show(job_id))["ended_at"] and found, f"{job_id} to end")
        return job

    def directories(self, job_id: str) -> dict[str, Path]:
        """Where the daemon has each kind of the job's output."""
        job = Root(str(self.site.state)).job(job_id)
        own = job.attempt(1)
        return {"results": Path(own.results), "logs": Path(own.logs), "checkpoint": Path(job.checkpoints)}

    def show(self, job_id: str) -> dict[str, Any]:
        return dict(self.site.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    base = tmp_path_factory.mktemp("download")
    for name in ("model", "desk", "home"):
        (base / name).mkdir()
    (base / "model" / "train.py").write_text(TRAIN)
    with site_in(base, more_environment={"FFDL_BACKEND": "local"}) as site:
        made = Desk(site, base)
        site.start(program=PLAIN)
        try:
            yield made
        finally:
            for job_id in made.jobs:
                site.ask("POST", f"/api/v1/jobs/{job_id}/cancel")
                made.finish(job_id)


@pytest.fixture(scope="module")
def ended(desk: Desk) -> str:
    """A job that is complete."""
    job_id = desk.submit()
    assert desk.finish(job_id)["state"] == "COMPLETED"
    return job_id


def found_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


MODEL = b"weights " + b"1" * 3_000_000
WHILE_IT_RUNS = {"deep/model [1].bin": MODEL, "empty": b"", "run.sh": b""}
RESULTS = {**WHILE_IT_RUNS, "last": b"the end"}
LEFT_OUT = {
    "ffdl: link is left out: it is a link that leads out of the directory, to /etc/passwd",
    "ffdl: deep/pipe is left out: it is a named pipe",
    "ffdl: talk is left out: it is a socket",
}


def test_download_fetches_results_logs_checkpoint_and_model(desk: Desk) -> None:
    """Of a running job through the daemon, of one that has ended from its directory."""
    job_id = desk.submit()
    out = desk.base / "desk" / job_id
    ran = desk.ask("download", job_id)
    partial = f"ffdl: {job_id} is PROCESSING: its output is not complete"
    assert sorted(ran.stderr.splitlines()) == sorted({partial, *LEFT_OUT})
    assert found_in(out / "results") == WHILE_IT_RUNS
    assert (out / "results" / "empty").stat().st_mtime > 1e9
    desk.ask("download", "--logs", job_id)
    assert found_in(out / "logs")["learner-1/training-log.txt"] == b"hello\n"
    (desk.base / "desk" / "own").mkdir()
    (desk.base / "desk" / "own" / "empty").write_text("my own")
    refused = desk.ask("download", job_id, "--out", "own", code=1)
    assert "not what the store has (empty)" in refused.stderr
    assert found_in(desk.base / "desk" / "own") == {"empty": b"my own"}

    desk.finish(job_id)
    ran = desk.ask("download", job_id)  # what an earlier call brought is replaced
    assert "4 files brought to " in ran.stdout
    assert set(ran.stderr.splitlines()) == LEFT_OUT
    assert found_in(out / "results") == RESULTS
    assert str((out / "results" / "latest").readlink()) == "deep"
    assert [(out / "results" / name).stat().st_mode & 0o777 for name in ("run.sh", "hollow")] == [0o755, 0o700]
    done = json.loads(desk.ask("download", job_id, "--json", "-Q").stdout)["done"]
    assert (done["kept"], done["bytes"]) == (4, 0)
    desk.ask("download", "--logs", job_id)
    assert found_in(out / "logs")["learner-1/training-log.txt"] == b"hello\ngoodbye\n"
    ran = desk.ask("download", "--checkpoint", job_id, "--out", "saved")
    assert ran.stderr == "ffdl: pipe is left out: it is a named pipe\n"
    assert found_in(desk.base / "desk" / "saved") == {"step": b"7"}
    desk.ask("download", "--model", job_id[:14], "--attempt", "1")
    assert list(found_in(out / "model")) == ["model.zip"]
    ran = desk.ask("download", "--model", "--checkpoint", job_id, "--out", "both", "--json")
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(line["kind"], line["done"]["files"]) for line in lines] == [("model", 1), ("checkpoint", 1)]
    assert sorted(found_in(desk.base / "desk" / "both")) == ["checkpoint/step", "model/model.zip"]
    desk.ask("download", "--results", "--model", job_id)
    assert found_in(out / "results") == RESULTS
    assert not list((desk.base / "home").rglob("sent"))


def test_download_and_logs_of_array_have_output_of_each_job_until_it_is_removed(desk: Desk) -> None:
    finish = desk.base / "finish-array"
    finish.touch()
    (desk.base / "manifest.yml").write_text(MANIFEST.format(finish=finish, more=""))
    model = str(desk.base / "model")
    ran = desk.ask("submit", "--parsable", "--array=3,5", str(desk.base / "manifest.yml"), model)
    array = ran.stdout.strip()
    desk.ask("wait", array)
    ran = desk.ask("download", array)
    assert ran.stdout.count("4 files brought to ") == 2
    ids = [job["id"] for job in desk.site.ask("GET", f"/api/v1/jobs?array={array}")[1]["jobs"]]
    for index in ("3", "5"):
        assert found_in(desk.base / "desk" / array / index / "results") == RESULTS
    ran = desk.ask("download", "--model", "--logs", "--out", "each", "--json", array)
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(line["job"], line["kind"]) for line in lines] == [(job, kind) for job in ids for kind in ("model", "logs")]
    assert (
        desk.base / "desk" / "each" / "5" / "logs" / "learner-1" / "training-log.txt"
    ).read_text() == "hello\ngoodbye\n"
    assert desk.ask("logs", array).stdout == "[_3] hello\n[_3] goodbye\n[_5] hello\n[_5] goodbye\n"
    root = Root(str(desk.site.state))
    desk.ask("rm", f"{array}_3")
    assert [Path(root.job(job_id).path).exists() for job_id in ids] == [False, True]
    desk.ask("download", "--logs", "--out", "left", array)
    assert sorted(path.name for path in (desk.base / "desk" / "left").iterdir()) == ["5"]
    desk.ask("rm", array)
    assert not Path(root.job(ids[1]).path).exists() and not Path(root.array(array).path).exists()
    desk.ask("download", array, code=1)


def test_download_keeps_differing_local_files_without_force(desk: Desk, ended: str) -> None:
    out = desk.base / "desk" / "mine"
    out.mkdir()
    (out / "empty").write_text("my own")
    refused = desk.ask("download", ended, "--out", "mine", code=1)
    assert "not what the store has (empty)" in refused.stderr
    assert "have them replaced (--force)" in refused.stderr
    assert found_in(out) == {"empty": b"my own"}
    desk.ask("download", ended, "--out", "mine", "--force")
    assert found_in(out) == RESULTS
    (out / "last").write_text("altered")
    desk.ask("download", ended, "--out", "mine", code=1)


ALL = {"results", "model", "logs", "checkpoint"}
FLAGS = ("--checkpoint", "--logs", "--model", "--results")
UNREAD = "1 file or directory was not read ({name}: Permission denied); all others are copied"


@pytest.mark.parametrize(
    ("shut", "moved", "said"),
    [
        ({"results/last": 0}, (), ["results: " + UNREAD.format(name="last")]),
        ({"results/deep": 0}, (), ["results: " + UNREAD.format(name="deep")]),
        ({"logs/learner-1": 0}, (), ["logs: " + UNREAD.format(name="learner-1")]),
        (
            {"results/last": 0, "checkpoint/step": 0},
            (),
            ["results: " + UNREAD.format(name="last"), "checkpoint: " + UNREAD.format(name="step")],
        ),
        ({}, ("results",), ["has no results any more"]),
        ({}, ("checkpoint", "logs"), ["has no logs any more", "has no checkpoint any more"]),
        (
            {"logs/learner-1": 0},
            ("results",),
            ["has no results any more", "logs: " + UNREAD.format(name="learner-1")],
        ),
    ],
)
def test_download_tries_all_kinds_and_reports_incomplete_ones_at_the_end(
    desk: Desk, ended: str, tmp_path: Path, shut: dict[str, int], moved: tuple[str, ...], said: list[str]
) -> None:
    directories = desk.directories(ended)
    places = {name: directories[name.partition("/")[0]] / name.partition("/")[2] for name in shut}
    for name, mode in shut.items():
        places[name].chmod(mode)
    for kind in moved:
        directories[kind].rename(tmp_path / kind)
    try:
        ran = desk.ask(
            "download", ended, *FLAGS, "--out", str(tmp_path / "out"), "--json", code=1, program=FFDL_AS_OTHERS
        )
    finally:
        for name in shut:
            places[name].chmod(0o755)
        for kind in moved:
            (tmp_path / kind).rename(directories[kind])
    lines = ran.stderr.splitlines()[-len(said) :]
    assert [words in line for words, line in zip(said, lines, strict=True)] == [True] * len(said), ran.stderr
    incomplete = {name.partition("/")[0] for name in shut} | set(moved)
    whole = {json.loads(line)["kind"] for line in ran.stdout.splitlines()}
    assert whole == ALL - incomplete
    found = set(found_in(tmp_path / "out"))
    assert "model/model.zip" in found
    assert ("checkpoint/step" in found) == ("checkpoint" not in incomplete)
    assert ("results/run.sh" in found) == ("results" not in moved)
    assert ("logs/learner-1/training-log.txt" in found) == ("logs" not in incomplete)


def test_download_copies_other_kinds_if_one_would_replace_local_files(desk: Desk, ended: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "empty").write_text("my own")
    ran = desk.ask("download", ended, "--results", "--checkpoint", "--out", str(tmp_path), code=1)
    assert "ffdl: results: " in ran.stderr and "not what the store has (empty)" in ran.stderr
    assert found_in(tmp_path) == {"results/empty": b"my own", "checkpoint/step": b"7"}


@pytest.mark.parametrize("flags", [FLAGS, ("--results", "--logs")])
def test_download_of_several_kinds_reports_error_of_the_whole_job_once(
    desk: Desk, ended: str, flags: tuple[str, ...]
) -> None:
    ran = desk.ask("download", "training-zzzzzzzzz", *flags, code=1)
    assert ran.stderr.count("there is no job") == 1
    ran = desk.ask("download", ended, "--attempt", "2", *flags, "-Q", code=2)
    assert ran.stderr.count("there is no attempt 2") == 1


def test_download_fetches_results_from_directory_store_of_manifest(desk: Desk) -> None:
    (desk.base / "nfs").mkdir()
    job_id = desk.submit(STORE)
    job = desk.finish(job_id)
    assert job["results"] == str(desk.base / "nfs" / "kept" / job_id)
    desk.ask("download", job_id)
    got = found_in(desk.base / "desk" / job_id / "results")
    assert {name: got[name] for name in RESULTS} == RESULTS
    assert {"learner-1/training-log.txt", "_submitted_code/model.zip"} < set(got)
    desk.ask("download", job_id, "--attempt", "1", "--out", "first")
    assert found_in(desk.base / "desk" / "first") == RESULTS
    (desk.base / "nfs" / "kept" / job_id).rename(desk.base / "nfs" / "kept" / "moved")
    gone = desk.ask("download", job_id, "--out", "again", code=1)
    assert f"{job_id} has no results any more: {job['results']} does not exist" in gone.stderr


def test_download_rejects_unknown_job_or_attempt_and_file_as_output(desk: Desk, ended: str) -> None:
    (desk.base / "desk" / "a-file").touch()
    assert "a-file is not a directory" in desk.ask("download", ended, "--out", "a-file", code=2).stderr
    assert "there is no attempt 2" in desk.ask("download", ended, "--attempt", "2", code=2).stderr
    assert "there is no job" in desk.ask("download", "training-zzzzzzzzz", code=1).stderr


def test_client_fetches_results_of_ended_job_through_daemon(desk: Desk, ended: str) -> None:
    program = (
        "import pathlib, sys; from ffdl_batch import Client; client = Client(); "
        "output = client.output.find(sys.argv[1]); assert not output.is_partial; "
        "print(client.output.bring(output, pathlib.Path(sys.argv[2])))"
    )
    target = desk.base / "by-wire"
    argv, env = [sys.executable, "-c", program, ended, str(target)], desk.site.environment()
    done = preloaded.run(argv, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
    assert found_in(target) == RESULTS

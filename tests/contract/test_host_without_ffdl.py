"""From a laptop to a login node that has Slurm and nothing of ours: files go along, and Slurm's own commands do it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import until
from tests.contract.scheduler_harness import FAKES
from tests.login_node import LIMIT_S, Laptop, LoginNode
from tests.unit.slurm.test_leaving import APPTAINER

TRAIN = """\
import json, os, pathlib, sys
calls = [json.loads(line) for line in open(os.environ["CALLS"])]  # no container: where its path is out here
places = {to: of for call in calls for of, to in (bind.split(":")[:2] for bind in call["binds"])}
print("hello from", os.environ["LEARNER_ID"], os.environ.get("TOKEN", ""), flush=True)
pathlib.Path(places[sys.argv[1]], "weights.bin").write_bytes(b"w" * 1000)
print("goodbye", flush=True)
sys.exit(int(os.environ.get("CODE", "0")))
"""
MANIFEST = """\
name: far away
framework: {name: custom, version: registry.example.org/a/b:1, command: python3 train.py $RESULT_DIR}
cpus: 1
memory: 100MB
"""


class World:
    """A login node with the fake Slurm and no ffdl, and a laptop."""

    def __init__(self, base: Path) -> None:
        self.state = base / "slurm"
        for name in ("jobs", "gone", "steps", "accounts"):
            (self.state / name).mkdir(parents=True)
        (self.state / "site.json").write_text("[]")
        (self.state / "show-n[1-2]").write_text("n1\n")
        self.node = LoginNode(
            base / "node",
            profile={
                "PATH": os.pathsep.join((str(base / "node" / "home" / "bin"), str(FAKES), "/usr/bin", "/bin")),
                "SLURM_CONF": str(self.state / "slurm.conf"),
                "OUT": str(base / "out"),
                "CALLS": str(base / "calls"),
                "SBATCH_PARTITION": "of-the-profile",
            },
        )
        (self.node.bin / "ffdl").unlink()
        self.node.write_program("python3", f'exec {sys.executable} "$@"')
        apptainer = self.node.bin / "apptainer"
        stub = APPTAINER.format(python=sys.executable).replace('("PATH", "OUT")', '("PATH", "OUT", "CALLS")')
        apptainer.write_text(textwrap.dedent(stub))
        apptainer.chmod(0o755)
        self.base = self.node.home / "ffdl-jobs"
        self.laptop = self.bring_laptop(base / "laptop")

    def bring_laptop(self, directory: Path) -> Laptop:
        """Another laptop with a model and a manifest takes the place of the one before."""
        self.laptop = Laptop(directory, self.node.config())
        self.laptop.environ |= {"FFDL_HOST_DIR": str(self.base), "OWN_WORD": "it's $(id)"}
        (self.laptop.directory / "model" / "deep").mkdir(parents=True)
        (self.laptop.directory / "model" / "train.py").write_text(TRAIN)
        (self.laptop.directory / "model" / "deep" / "ünï code").write_text("x")
        self.write("")
        return self.laptop

    def write(self, more: str) -> None:
        """The manifest."""
        (self.laptop.directory / "manifest.yml").write_text(MANIFEST + textwrap.dedent(more))

    def submit(self, *options: str) -> str:
        done = self.laptop.run("--parsable", *options, "manifest.yml", "model", program="ffdl-submit")
        assert done.returncode == 0, done.stderr
        assert "login has no ffdl" in done.stderr
        return done.stdout.strip()

    def calls(self, command: str) -> list[dict[str, Any]]:
        log = self.state / "calls.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [call for call in map(json.loads, lines) if call["command"] == command]

    def directory(self, job_id: str) -> Path:
        return (self.base / "by-id" / job_id).resolve()

    def spoil(self, **faults: list[str]) -> None:
        (self.state / "faults.json").write_text(json.dumps(faults))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.node.stop()


@pytest.fixture(scope="module")
def idle_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("idle"))
    try:
        yield made
    finally:
        made.node.stop()


@pytest.fixture
def idle(idle_site: World, tmp_path: Path) -> World:
    """A host that never gets a job, shared by tests, and a laptop of this test's."""
    idle_site.bring_laptop(tmp_path / "laptop")
    return idle_site


def test_submit_to_slurm_only_host_runs_job_with_private_secrets_and_download_fetches_results(world: World) -> None:
    world.write('batch: {secrets: {TOKEN: "${env:OWN_WORD}"}}\n')
    job_id = world.submit("--export", "MORE=planted")
    laptop, directory = world.laptop, world.directory(job_id)
    code = laptop.run("wait", "--timeout", "100", job_id).returncode
    assert code == 0, (directory / f"slurm-{job_id}.out").read_text()
    done = laptop.run("logs", job_id)
    assert (done.returncode, done.stdout) == (0, "hello from 1 it's $(id)\ngoodbye\n")
    assert laptop.run("logs", "--tail", "1", job_id).stdout == "goodbye\n"
    shown = json.loads(laptop.run("show", "--json", job_id).stdout)["job"]
    assert shown["directory"] == str(directory)
    assert shown["observations"][job_id]["native_state"] == "COMPLETED"
    assert f"login:{directory}" in laptop.run("show", job_id).stdout
    done = laptop.run("download", job_id, "--logs", "--results", "--out", "here")
    assert done.returncode == 0, done.stderr
    (brought,) = (laptop.directory / "here" / "results").rglob("weights.bin")
    assert brought.read_bytes() == b"w" * 1000
    assert list((laptop.directory / "here" / "logs").rglob("training-log.txt"))
    assert (directory / "model" / "deep" / "ünï code").read_text() == "x"
    assert "FAR" in laptop.run("list").stdout.upper()
    assert not (laptop.directory / "state").exists(), "no daemon here"
    (call,) = world.calls("sbatch")
    assert "SBATCH_PARTITION" not in str(call)
    modes = [path.stat().st_mode & 0o777 for path in (world.base, directory, directory / "secrets.sh")]
    assert modes == [0o700, 0o700, 0o600]
    public = (directory / "job.sbatch").read_text() + str(call)
    assert "$(id)" not in public and "planted" not in public


@pytest.mark.full
def test_wait_on_slurm_only_host_returns_exit_status_until_slurm_forgets_job(world: World) -> None:
    world.write("batch: {env: {CODE: '7'}}\n")
    job_id = world.submit()
    done = world.laptop.run("wait", job_id)
    assert (done.returncode, done.stdout) == (7, f"{job_id} FAILED\n")
    (world.state / "accounting").touch()
    (world.state / "jobs" / f"{job_id}.json").rename(world.state / "gone" / f"{job_id}.json")
    assert "FAILED" in world.laptop.run("list").stdout
    (world.state / "accounting").unlink()
    assert "UNKNOWN" in world.laptop.run("show", job_id).stdout
    done = world.laptop.run("wait", job_id)
    assert done.returncode == 75 and "knows nothing more" in done.stderr


@pytest.mark.full
def test_cancel_on_slurm_only_host_cancels_pending_job(world: World) -> None:
    (world.state / "hold").touch()
    world.base = world.node.home / "it's a place"
    world.laptop.environ["FFDL_HOST_DIR"] = str(world.base)
    job_id = world.submit("--time", "10", "-p", "main")
    assert "--time=" in (world.directory(job_id) / "job.sbatch").read_text()
    assert json.loads(world.laptop.run("list", "--json").stdout)["jobs"][0]["observation"]["phase"] == "pending"
    assert world.laptop.run("logs", job_id).stdout == ""
    assert world.laptop.run("cancel", job_id).returncode == 0
    until(lambda: "CANCELLED" in world.laptop.run("list").stdout, "the end")
    done = world.laptop.run("cancel", "99999")
    assert done.returncode == 66 and "no job 99999" in done.stderr


def test_logs_on_slurm_only_host_cover_all_array_tasks(world: World) -> None:
    job_id = world.submit("--array", "0-2%2")
    assert world.laptop.run("wait", job_id).returncode == 0
    done = world.laptop.run("logs", "-f", job_id)
    assert done.stdout.count("goodbye") == 3 and f"[{job_id}_2.1] hello from 1" in done.stdout
    assert world.laptop.run("logs", f"{job_id}_1").stdout == "hello from 1 \ngoodbye\n"


@pytest.mark.full
def test_logs_on_slurm_only_host_follow_until_job_ends(world: World, tmp_path: Path) -> None:
    command = f"echo begun; until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo over"
    text = MANIFEST.replace("python3 train.py $RESULT_DIR", f'"{command}"')
    (world.laptop.directory / "manifest.yml").write_text(text)
    done = world.laptop.run("train", "--parsable", "-Q", "manifest.yml", "model")
    assert done.returncode == 0 and done.stdout == done.stderr == "", "quiet as sbatch --quiet"
    (job_id,) = [one["id"] for one in json.loads(world.laptop.run("list", "--json").stdout)["jobs"]]
    with world.laptop.start("logs", "-f", job_id) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        (tmp_path / "go").touch()
        assert process.communicate(timeout=LIMIT_S)[0] == "over\n" and process.returncode == 0


@pytest.mark.full
def test_logs_on_slurm_only_host_show_batch_output_when_no_learner_started(world: World) -> None:
    world.node.write_program("srun", "echo 'srun: error: no apptainer' >&2; exit 3")
    job_id = world.submit()
    assert world.laptop.run("wait", job_id).returncode == 3
    assert "no apptainer" in world.laptop.run("logs", job_id).stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("batch: {network: none}\n", "network none cannot be had"),
        ("batch: {secrets: {TOKEN: '${secret:hub}'}}\n", "needs ffdl_batch on login"),
        ("batch: {secrets: {TOKEN: '${env:NOT_SET}'}}\n", "cannot be read here"),
        (
            "data_stores:\n"
            "- {id: a, type: s3_datastore, training_data: {container: c},\n"
            "   connection: {auth_url: 'http://127.0.0.1:1', user_name: u, password: p}}\n",
            "nobody would move the data",
        ),
        ("learner: 2\nlearners: x\n", "learners"),
    ],
)
def test_submit_to_slurm_only_host_rejects_unusable_manifest_before_transfer(idle: World, more: str, said: str) -> None:
    idle.write(more)
    done = idle.laptop.run("manifest.yml", "model", program="ffdl-submit")
    assert done.returncode in (69, 78) and said in done.stderr, done.stderr
    assert not idle.base.exists() and not idle.calls("sbatch")


@pytest.mark.full
def test_submit_to_slurm_only_host_rejects_missing_image(idle: World) -> None:
    for version, said in (("/images/none.sif", "is not on login"), ("nothing", "Nothing tells which images login has")):
        text = MANIFEST.replace("registry.example.org/a/b:1", version)
        (idle.laptop.directory / "manifest.yml").write_text(text)
        done = idle.laptop.run("manifest.yml", "model", program="ffdl-submit")
        assert done.returncode == 78 and said in done.stderr, done.stderr
    assert not idle.calls("sbatch")


@pytest.mark.full
def test_submit_to_slurm_only_host_reports_unknown_configuration_key(idle: World) -> None:
    config = idle.laptop.directory / "site.toml"
    config.write_text("[backend.slurm]\npartitoin = 'a'\n")
    idle.laptop.environ["FFDL_CONFIG"] = str(config)
    done = idle.laptop.run("manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 78 and not idle.calls("sbatch")
    assert f"{config}: [backend.slurm]: unknown key 'partitoin'; did you mean partition?" in done.stderr, done.stderr


@pytest.mark.full
def test_list_on_slurm_only_host_rejects_option_that_needs_ffdl(idle: World) -> None:
    done = idle.laptop.run("list", "--state", "FAILED")
    assert done.returncode == 2 and "--state needs ffdl_batch on login" in done.stderr, done.stderr


@pytest.mark.parametrize("words", [("halt", "1"), ("why", "1"), ("daemon", "status"), ("exec", "1", "--", "ls")])
def test_commands_on_slurm_only_host_exit_69_when_they_need_ffdl(idle: World, words: tuple[str, ...]) -> None:
    done = idle.laptop.run(*words)
    assert done.returncode == 69 and f"ffdl {words[0]} needs ffdl_batch on login" in done.stderr, done.stderr


def test_submit_dry_run_for_slurm_only_host_prints_script_without_transfer(idle: World) -> None:
    done = idle.laptop.run("--dry-run", "manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 0 and done.stdout.startswith('#!/bin/bash\n#SBATCH --job-name="far away"'), done.stderr
    assert not idle.base.exists()


@pytest.mark.full
def test_commands_on_slurm_only_host_report_sbatch_and_squeue_errors(world: World) -> None:
    world.spoil(sbatch=["refuse"])
    done = world.laptop.run("manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 78 and "Invalid account" in done.stderr
    world.spoil(squeue=["down:always"])
    assert world.laptop.run("list").returncode == 0, "there is nothing to ask for"
    world.spoil(squeue=["down:always"])
    job_id = world.submit()
    assert world.laptop.run("show", job_id).returncode == 75


def test_submit_to_slurm_only_host_finds_job_when_sbatch_answer_is_lost(world: World) -> None:
    """The session ends after sbatch has answered, before its answer is passed on."""
    children = f"/proc/{world.node.server.pid}/task/{world.node.server.pid}/children"
    world.node.write_program(
        "cat",
        f'[ "$1" = complaint ] && {{ rm "$0"; for one in $(/bin/cat {children}); do kill $one; '
        'while kill -0 $one 2>/dev/null; do sleep 0.05; done; done; }; exec /bin/cat "$@"',
    )
    done = world.laptop.run("--parsable", "manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 0 and "the answer was lost" in done.stderr, done.stderr
    assert done.stdout.strip() == "101" and len(world.calls("sbatch")) == 1


@pytest.mark.full
def test_submit_to_slurm_only_host_reports_unusable_host_dir(world: World) -> None:
    world.base.write_text("a file")
    done = world.laptop.run("manifest.yml", "model", program="ffdl-submit")
    assert done.returncode == 1 and "host_dir" in done.stderr and str(world.base) in done.stderr


def test_submit_to_slurm_only_host_rejects_archive_with_outside_path(idle: World) -> None:
    with zipfile.ZipFile(idle.laptop.directory / "bad.zip", "w") as archive:
        archive.writestr("../../evil", "x")
    done = idle.laptop.run("manifest.yml", "bad.zip", program="ffdl-submit")
    assert done.returncode == 78 and "evil" in done.stderr
    assert not idle.calls("sbatch")


@pytest.mark.full
def test_list_exits_69_when_host_has_neither_ffdl_nor_slurm(world: World) -> None:
    world.node.known["PATH"] = f"{world.node.bin}:/usr/bin:/bin"
    world.node.write_profile("")
    done = world.laptop.run("list")
    assert done.returncode == 69 and "no commands of a scheduler either" in done.stderr
    assert "install ffdl_batch there" in done.stderr

"""ffdl-submit --wrap: a command without a manifest, as sbatch --wrap."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import yaml

from ffdl_batch.domain.findings import Severity
from ffdl_batch.domain.job.submission import Submission
from ffdl_batch.manifest import Defaults, ManifestSource, parse_manifest
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon

COMMAND = "echo \"it's $HOME\" 'ä' \\\\ %j; python3 train.py --lr 0.1 # end"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A directory to submit from."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("print('hello')\n")
    return tmp_path / "work"


def sent(daemon: FakeDaemon) -> Submission:
    (submission,) = daemon.submissions.values()
    return submission


def test_wrap_submits_command_with_current_directory_as_model(daemon: FakeDaemon, work: Path) -> None:
    done = run(FFDL_SUBMIT, "--wrap", COMMAND, "-G1", "-J", "mine", daemon=daemon, cwd=work)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job training-000000001\n", "")
    submission = sent(daemon)
    parsed = parse_manifest(ManifestSource(submission.manifest.encode(), "--wrap", "/"), defaults=Defaults())
    assert parsed.spec is not None and {finding.severity for finding in parsed.findings} <= {Severity.NOTE}
    framework = parsed.spec.framework
    assert (parsed.spec.name, framework.name, framework.version) == ("wrap", "custom", "python-numpy")
    assert framework.command == COMMAND
    assert submission.options == {"gpus": "1", "job-name": "mine"}
    with zipfile.ZipFile(io.BytesIO(daemon.archives[submission.archive])) as archive:
        assert archive.namelist() == ["train.py"]


@pytest.mark.parametrize(
    ("options", "env", "framework"),
    [
        (("--image=docker://python:3.12",), {}, ("custom", "docker://python:3.12")),
        (("--image=mine.sif",), {}, ("custom", "{work}/mine.sif")),
        (("--image=other.sif",), {}, ("custom", "other.sif")),
        ((), {"FFDL_IMAGE": "docker://a:1"}, ("custom", "docker://a:1")),
        (("--framework=pytorch:2.4",), {"FFDL_IMAGE": "docker://a:1"}, ("pytorch", "2.4")),
    ],
)
def test_wrap_runs_in_chosen_image(
    daemon: FakeDaemon, work: Path, options: tuple[str, ...], env: dict[str, str], framework: tuple[str, str]
) -> None:
    (work / "mine.sif").write_text("an image")
    assert run(FFDL_SUBMIT, "--wrap=true", *options, str(work), daemon=daemon, cwd=work, env=env).returncode == 0
    found = yaml.safe_load(sent(daemon).manifest)["framework"]
    assert (found["name"], found["version"]) == (framework[0], framework[1].format(work=work))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--wrap", "  "), "--wrap needs a command"),
        (("--wrap=true", "m.yml", "model"), "--wrap needs no manifest"),
        (("--wrap=true", "--framework=pytorch"), "write NAME:VERSION"),
        (("--image=docker://a:1", "m.yml", "model"), "--image and --framework are for --wrap"),
    ],
)
def test_wrap_refuses_wrong_usage(daemon: FakeDaemon, work: Path, words: tuple[str, ...], said: str) -> None:
    done = run(FFDL_SUBMIT, *words, daemon=daemon, cwd=work)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_wrap_does_not_send_home_directory(daemon: FakeDaemon, work: Path) -> None:
    done = run(FFDL_SUBMIT, "--wrap=true", daemon=daemon, cwd=work, env={"HOME": str(work)})
    assert (done.returncode, f"{work} is not sent as a whole; name the model" in done.stderr) == (2, True), done.stderr
    assert daemon.submissions == {}


def test_image_variable_does_not_change_submissions_of_manifests(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    assert run(FFDL_SUBMIT, manifest, model, daemon=daemon, env={"FFDL_IMAGE": "docker://a:1"}).returncode == 0
    assert sent(daemon).manifest == manifest.read_text()


def test_plan_takes_wrapped_command(daemon: FakeDaemon, work: Path) -> None:
    done = run(FFDL, "plan", "--no-why", "--json", "--wrap=true", daemon=daemon, cwd=work)
    (document,) = json_lines(done.stdout)
    assert (document["manifest"], document["plan"]["backend"]) == ("--wrap", "slurm")

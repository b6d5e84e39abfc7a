"""The recipes of docs/python.md with the real packages: real daemon, local backend."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.daemon_rig import PLAIN, Site, site_in, until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PACKAGES = (
    "cloudpickle>=3.1", "hydra-core==1.3.8", "lightning==2.6.6", "mlflow-skinny==3.17.2", "numpy", "pathspec>=1.0",
    "torch==2.13.0", "wandb==0.31.0",
)  # fmt: skip
READ_WANDB = """
import json, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
data, at, whole = Path(sys.argv[1]).read_bytes(), 7, b""  # a log as of LevelDB, after a header
while at < len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
    size, part = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    whole += data[at + 7 : at + 7 + size]
    at += 7 + size
    if part in (1, 4):  # whole, or the last part
        record, whole = Record.FromString(whole), b""
        for item in record.history.item:
            if "loss" in (item.key, *item.nested_key):
                print(json.loads(item.value_json))
"""
READ_MLFLOW = """
import sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
(run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
print(run.info.run_name, run.info.status, run.data.params["rate"])
print(*(one.value for one in client.get_metric_history(run.info.run_id, "loss")))
"""
LOSSES = [0.8 ** (2 * step) for step in range(1, 11)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The directory of a `python3` with the real packages."""
    place = tmp_path_factory.mktemp("frameworks")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([f"{place}/bin/pip", "-q", "install", *PACKAGES], check=True)
    yield f"{place}/bin"
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, packages: str) -> Iterator[Site]:
    environment = {"FFDL_BACKEND": "local", "PATH": f"{packages}:{os.environ['PATH']}"}
    with site_in(tmp_path_factory.mktemp("site"), more_environment=environment) as site:
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        yield site


def run(site: Site, directory: Path, *words: str, code: int = 0) -> str:
    """Run a program of a user on the login node, in `directory`."""
    environment = site.environment() | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/adapters",
        "HOME": str(directory),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    argv = ["python3", *words]
    done = subprocess.run(argv, check=False, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == code, f"{done.stdout}{done.stderr}\n{site.log}"
    return done.stdout + done.stderr


@pytest.mark.full
def test_lightning_recipe_trains_with_each_rate(site: Site, tmp_path: Path) -> None:
    program = EXAMPLES / "lightning" / "submit.py"
    said = run(site, tmp_path, str(program), "--steps", "80", "0.1", "0.01")
    losses = {rate: float(loss) for rate, loss in re.findall(r"^training-\w+ rate (\S+) loss (\S+)$", said, re.M)}
    assert losses.keys() == {"0.1", "0.01"}
    assert 0 < losses["0.1"] < losses["0.01"] < 10
    for rate in losses:
        copied = tmp_path / "results" / rate
        assert (copied / "model.ckpt").stat().st_size > 1000
        assert (copied / "metrics.csv").read_text().startswith("epoch,loss,step\n")


@pytest.mark.full
def test_hydra_recipe_runs_sweep_as_jobs(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    shutil.copytree(EXAMPLES / "hydra", folder)
    sweep = ("--multirun", "hydra/launcher=ffdl", "+hydra.launcher.options.cpus=0.1", "hydra.sweep.dir=out")
    said = run(site, folder, "train.py", *sweep, "rate=0.1,0.2", "steps=5")
    jobs = dict(re.findall(r"^(training-\w+) (rate=\S+ steps=5)$", said, re.M))
    assert sorted(jobs.values()) == ["rate=0.1 steps=5", "rate=0.2 steps=5"]
    for job_id, overrides in jobs.items():
        job = json.loads(site.run("show", "--json", job_id))["job"]
        assert (job["state"], job["cpus"]) == ("COMPLETED", 0.1)
        assert f"rate {overrides[5:8]} steps 5 place" in site.run("logs", job_id)
    for number, rate in enumerate(("0.1", "0.2")):
        found = (folder / "out" / str(number) / ".hydra" / "overrides.yaml").read_text()
        assert found == f"- rate={rate}\n- steps=5\n"
    said = run(site, folder, "train.py", *sweep, "steps=-1", code=1)
    assert "ValueError: steps must be 0 or more" in said


@pytest.mark.full
def test_tracking_recipe_records_offline_and_is_synced(site: Site, tmp_path: Path) -> None:
    recipe = EXAMPLES / "tracking"
    job_id = site.run("submit", "--parsable", str(recipe / "manifest.yml"), str(recipe / "model")).strip()
    site.run("wait", job_id)
    server = f"file://{tmp_path}/server"
    said = run(site, tmp_path, str(recipe / "sync.py"), job_id, server)
    assert "run parabola: 10 values of metrics" in said
    head, values = run(site, tmp_path, "-W", "ignore", "-c", READ_MLFLOW, server).splitlines()[:2]
    assert head == "parabola FINISHED 0.1"
    assert list(map(float, values.split())) == pytest.approx(LOSSES)
    (recorded,) = (tmp_path / "results" / job_id).glob("wandb/offline-run-*/run-*.wandb")
    losses = run(site, tmp_path, "-W", "ignore", "-c", READ_WANDB, str(recorded)).split()
    assert list(map(float, losses)) == pytest.approx(LOSSES)

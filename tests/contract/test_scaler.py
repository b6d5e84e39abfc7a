"""Two elastic jobs in a pool of four GPUs: real daemon, controllers, learners and command line, on the fake Slurm."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import Site, site_in, until
from tests.contract.scheduler_harness import FAKES
from tests.first_start import write_controller

PROGRAM = ("-m", "tests.fakes.daemon_that_stops")
TRAIN = """
import os, pathlib, signal, sys, time
world = pathlib.Path(sys.argv[1])
name, attempt, rank = sys.argv[2], os.environ["FFDL_ATTEMPT"], os.environ["LEARNER_ID"]
checkpoint = pathlib.Path(os.environ["CHECKPOINT_DIR"], "step")
asked = []
signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
with (world / "executions").open("a") as file:
    file.write(f"{name} {attempt} {rank}\\n")
if int(attempt) > 1 and not checkpoint.exists():
    sys.exit("the checkpoint is lost")
learners = int(os.environ["WORLD_SIZE"])
while not asked and not (world / f"finish-{name}").exists():
    if rank == "1":
        print(f"ffdl-throughput: samples={10 * learners} seconds=1 remaining=1000000", flush=True)
    time.sleep(0.2)
if asked and rank == "1":
    checkpoint.write_text(attempt)
"""
MANIFEST = """
name: {name}
cpus: 0.1
memory: 100MB
learners: 4
framework: {{name: custom, version: /images/any.sif, command: python3 train.py {world} {name}}}
batch:
  checkpoint: {{saved_by: first}}
  elastic: {elastic}
"""
ELASTIC = "{max_learners: 4, batch: {min: 16, max: 16, per_gpu_max: 16}}"
IN_PLACE = "{in_place: true, max_learners: 4, batch: {min: 4, max: 16, per_gpu_max: 4, start: 16}}"
"""Each GPU has one permitted batch. The first learner of TRAIN does not need the others."""
CONFIG = """
check_images = false
[backend]
default = "slurm"
[backend.slurm]
credential_life_s = 1
command_timeout_s = 60
python = "{python}"
scratch_base = "{base}/scratch"
[elastic.pools.default]
gpus = 4
interval_s = 1
min_between_s = 0
objective = "fair"
"""


@contextmanager
def slurm_site(tmp_path: Path, programs: str = str(Path(sys.executable).parent), gpus: int = 4) -> Iterator[Site]:
    """A daemon with a pool on the fake Slurm; `programs` is a directory with a `python3`."""
    slurm = tmp_path / "slurm"
    for name in ("jobs", "gone", "steps"):
        (slurm / name).mkdir(parents=True)
    for name in ("scratch", "model"):
        (tmp_path / name).mkdir()
    nodes = (("main*", "1-00:00:00", "64", "64000", "(null)", "(null)", "n[1-4]"),)
    (slurm / "site.json").write_text(json.dumps(nodes))
    (slurm / "slurm.conf").touch()
    (tmp_path / "model" / "train.py").write_text(TRAIN)
    config = CONFIG.format(python=sys.executable, base=tmp_path)
    (tmp_path / "config.toml").write_text(config.replace("gpus = 4", f"gpus = {gpus}"))
    environment = {
        "PATH": os.pathsep.join((str(FAKES), programs, str(Path(sys.executable).parent), os.defpath)),
        "HOME": str(tmp_path),
        "SLURM_CONF": str(slurm / "slurm.conf"),
        "FFDL_CONFIG": str(tmp_path / "config.toml"),
        "FFDL_BACKEND": "slurm",
        "TEST_PLAN": str(tmp_path / "plan"),
    }
    with site_in(tmp_path, more_environment=environment) as made:
        made.start(program=PROGRAM)
        write_controller(made.state)
        yield made


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with slurm_site(tmp_path) as made:
        yield made


def submit(site: Site, name: str, elastic: str = ELASTIC) -> str:
    manifest = site.directory / f"{name}.yml"
    manifest.write_text(MANIFEST.format(name=name, world=site.directory, elastic=elastic))
    return site.run("submit", "--parsable", str(manifest), str(site.directory / "model")).strip()


def show(site: Site, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = json.loads(site.run("show", "--json", job_id))["job"]
    return job


def trains_with(site: Site, job_id: str, learners: int) -> None:
    """Wait until the job trains with this size."""

    def does() -> bool:
        job = show(site, job_id)
        return job["state"] == "PROCESSING" and bool(job["attempts"][-1]["learners"] == learners)

    until(does, lambda: f"{job_id} to train with {learners}: {show(site, job_id)}\n{site.log}")


def pool(site: Site) -> dict[str, Any]:
    (found,) = json.loads(site.run("scaler", "status", "--json"))["pools"]
    return dict(found)


def ends_without_loss(site: Site, *jobs: str) -> None:
    """End the jobs, and check that each learner of each attempt was executed once."""
    for path in ("finish-first", "finish-second"):
        (site.directory / path).touch()
    for job_id in jobs:
        until(lambda job_id=job_id: show(site, job_id)["state"] == "COMPLETED", lambda: site.log)  # type: ignore[misc]
    executions = Counter((site.directory / "executions").read_text().splitlines())
    assert set(executions.values()) == {1}
    sizes = [
        (name, str(attempt["number"]), str(rank))
        for name, job_id in zip(("first", "second"), jobs, strict=True)
        for attempt in show(site, job_id)["attempts"]
        for rank in range(1, attempt["learners"] + 1)
    ]
    assert executions.keys() == {" ".join(words) for words in sizes}


def test_jobs_share_pool_and_second_grows_when_first_ends(site: Site) -> None:
    first = submit(site, "first")
    trains_with(site, first, 4)
    second = submit(site, "second")
    trains_with(site, first, 2)
    trains_with(site, second, 2)
    assert pool(site)["used_gpus"] == 4
    explained = json.loads(site.run("scaler", "explain", "--json", second))["size"]
    assert (explained["pool"], explained["wanted_gpus"]) == ("default", 2)
    (site.directory / "finish-first").touch()
    trains_with(site, second, 4)
    assert [one["learners"] for one in show(site, second)["attempts"]] == [2, 4]
    assert "the scaler of pool default gave it 4 learners" in site.run("events", second)
    assert "none differs" in site.run("scaler", "replay", "default")
    site.run("scaler", "pause", "default")
    assert pool(site)["paused_at"] is not None
    site.run("scaler", "resume", "default")
    assert pool(site)["paused_at"] is None
    assert "unknown pool 'other'" in site.try_to("scaler", "pause", "other").stderr
    ends_without_loss(site, first, second)


@pytest.mark.parametrize(
    "step",
    [  # tests/unit/services/test_scaler.py kills at each step, too
        pytest.param("decided", marks=pytest.mark.full),
        "halted",
        pytest.param("resumed", marks=pytest.mark.full),
        pytest.param("admitted", marks=pytest.mark.full),
    ],
)
def test_daemon_killed_while_size_changes_loses_and_repeats_nothing(site: Site, step: str) -> None:
    first = submit(site, "first")
    trains_with(site, first, 4)
    (site.directory / "plan.fresh").write_text(f"{step} KILL")
    (site.directory / "plan.fresh").replace(site.directory / "plan")
    second = submit(site, "second")
    assert site.processes[-1].wait(120) == -signal.SIGKILL
    site.start(program=PROGRAM)
    trains_with(site, first, 2)
    trains_with(site, second, 2)
    ends_without_loss(site, first, second)


def shrinks_in_place(site: Site, job_id: str) -> None:
    """Wait until the job's attempt has two learners less."""
    until(lambda: show(site, job_id)["learners"] == 2, lambda: f"{show(site, job_id)}\n{site.log}")
    job = show(site, job_id)
    (attempt,) = job["attempts"]
    assert (job["state"], attempt["learners"], [one["learners"] for one in attempt["resizes"]]) == (
        "PROCESSING",
        4,
        [2],
    )


@pytest.mark.parametrize(
    "step",
    [  # tests/unit/services/test_shrinking.py kills at each step, too
        "",
        pytest.param("shrinking", marks=pytest.mark.full),
        pytest.param("left", marks=pytest.mark.full),
        "given_back",
        pytest.param("shrunk", marks=pytest.mark.full),
    ],
)
def test_job_shrinks_in_place_also_if_daemon_is_killed_at_a_step(site: Site, step: str) -> None:
    first = submit(site, "first", IN_PLACE)
    trains_with(site, first, 4)
    if step:
        (site.directory / "plan.fresh").write_text(f"{step} KILL")
        (site.directory / "plan.fresh").replace(site.directory / "plan")
    second = submit(site, "second")
    if step:
        assert site.processes[-1].wait(120) == -signal.SIGKILL
        site.start(program=PROGRAM)
    shrinks_in_place(site, first)
    trains_with(site, second, 2)
    shown = site.run("show", first)
    assert "changed in place to 2 learners and batch 8" in shown
    assert "the scaler of pool default shrank the job in place to 2 learners" in site.run("events", first)
    calls = [json.loads(line) for line in (site.directory / "slurm" / "calls.log").read_text().splitlines()]
    updates = [call["argv"] for call in calls if call["command"] == "scontrol" and call["argv"][0] == "update"]
    native = show(site, first)["native_id"]
    assert updates == [["update", f"JobId={native}", f"NodeList={os.uname().nodename},{os.uname().nodename}"]]
    ends_without_loss(site, first, second)

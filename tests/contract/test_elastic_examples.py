"""The examples of elastic jobs, halted and continued with another size: real daemon, local backend, real packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.contract import test_scaler
from tests.contract.daemon_rig import PLAIN, Site, site_in, until

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PACKAGES = ("torch==2.13.0", "lightning==2.6.6", "transformers==5.24.0", "accelerate==1.15.0")
"""A CPU build of this torch is preferred if pip finds one, for 1.2 GB; the build on PyPI brings those of NVIDIA."""


@dataclass(frozen=True)
class Example:
    """An example with a training that is long enough to be halted."""

    manifest: str
    learners: int
    """Of the first attempt."""
    options: str
    exact: float = 1e-5
    """Relative difference of the final loss if only the number of learners changes: single precision by default."""
    scale: float = 2.0
    """Of the learning rate, for twice the batch."""

    @property
    def samples(self) -> int:
        return int(self.options.split()[1])


ALL = {
    "numpy": Example("elastic-numpy/manifest.yml", 2, "--samples 12000 --pause 0.01", exact=1e-9),
    "pytorch": Example("elastic-pytorch/manifest.yml", 2, "--samples 12000 --pause 0.01"),
    "torchrun": Example("elastic-pytorch/torchrun.yml", 1, "--samples 12000 --pause 0.01"),
    "lightning": Example("elastic-lightning/manifest.yml", 2, "--samples 30000"),
    "huggingface": Example("elastic-huggingface/manifest.yml", 2, "--samples 60000", scale=2**0.5),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The directory of a `python3` with the real packages."""
    place = tmp_path_factory.mktemp("frameworks")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([f"{place}/bin/pip", "-q", "install", "numpy", *PACKAGES], check=True)
    yield f"{place}/bin"
    shutil.rmtree(place)


def submit(site: Site, example: Example, name: str) -> str:
    folder = EXAMPLES / example.manifest.partition("/")[0]
    text = (EXAMPLES / example.manifest).read_text()
    text = re.sub(r"--samples.*", example.options, text.replace("cpus: 1", "cpus: 0.1"))
    manifest = site.directory / f"{name}.yml"
    manifest.write_text(text)
    return site.run("submit", "--parsable", str(manifest), str(folder / "model")).strip()


def show(site: Site, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.run("show", "--json", job_id))["job"]
    return found


def first_steps(site: Site, job_id: str) -> list[tuple[int, int]]:
    return steps(site.run("logs", job_id))


def steps(log: str) -> list[tuple[int, int]]:
    """The samples of each step: the first one, and the one after the last."""
    return [(int(first), int(end)) for first, end in re.findall(r"\bsamples (\d+)-(\d+)\b", log)]


def check_elastic(base: Path, example: Example, path: str) -> None:
    """Halt two jobs, continue one with another number of learners and one with another batch too, and compare both with
    a job that is never halted."""
    environment = {"FFDL_BACKEND": "local", "PATH": f"{path}:{os.environ['PATH']}"}
    with site_in(base, more_environment=environment) as site:
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        halted = [submit(site, example, name) for name in ("same-batch", "other-batch")]
        for job_id in halted:
            until(partial(first_steps, site, job_id), f"the first step of {job_id}")
        site.run("halt", "--wait", *halted)
        whole = submit(site, example, "whole")
        for job_id, batch in zip(halted, (48, 96), strict=True):
            assert show(site, job_id)["attempts"][0]["checkpoint_confirmed"], site.run("logs", job_id)
            site.run("resume", "--learners", str(example.learners + 1), "--batch", str(batch), job_id)
        site.run("wait", whole, *halted, timeout=600)  # ten processes import a framework on few cores
        fixed, same, other = (check_job(site, job_id, example) for job_id in (whole, *halted))
        assert same["loss"] == pytest.approx(fixed["loss"], rel=example.exact)
        assert other["loss"] == pytest.approx(fixed["loss"], rel=0.1)
        rates = [other["learning_rate"] / fixed["learning_rate"], same["learning_rate"] / fixed["learning_rate"]]
        assert rates == pytest.approx([example.scale, 1.0])
        sizes = [(one["learners"], one["global_batch"]) for job_id in halted for one in show(site, job_id)["attempts"]]
        first, learners = (example.learners, 48), example.learners + 1
        assert sizes == [first, (learners, 48), first, (learners, 96)]


def check_job(site: Site, job_id: str, example: Example) -> dict[str, float]:
    """Return the result. No sample was skipped or repeated, and each attempt reported its throughput."""
    job, log = show(site, job_id), site.run("logs", "--attempt", "all", "--learner", "1", job_id)
    assert job["state"] == "COMPLETED", log
    found = steps(log)
    assert [first for first, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] >= example.samples
    assert log.count("ffdl-throughput:") >= len(job["attempts"])
    assert "ffdl/throughput" in site.run("metrics", job_id)
    result: dict[str, float] = json.loads((Path(job["results"]) / "result.json").read_text())
    assert result["samples"] == found[-1][1]
    return result


def test_elastic_numpy_example_trains_same_samples_at_other_size(tmp_path: Path) -> None:
    check_elastic(tmp_path, ALL["numpy"], str(Path(sys.executable).parent))


@pytest.mark.full
@pytest.mark.parametrize("name", ["pytorch", "torchrun", "lightning", "huggingface"])
def test_elastic_example_of_framework_trains_same_samples_at_other_size(
    tmp_path: Path, packages: str, name: str
) -> None:
    check_elastic(tmp_path, ALL[name], packages)


@pytest.mark.full
def test_torchrun_agents_stay_and_processes_continue_when_job_shrinks_in_place(tmp_path: Path, packages: str) -> None:
    folder = EXAMPLES / "elastic-pytorch"
    text = (
        (folder / "in-place.yml")
        .read_text()
        .replace("cpus: 1", "cpus: 0.1")
        .replace("--samples 40000", "--samples 20000")
    )
    image = "  name: custom\n  version: /images/any.sif\n"
    text = re.sub(r"  name: pytorch\n  version: debian.*\n", image, text)
    with test_scaler.slurm_site(tmp_path, packages, gpus=3) as site:
        (site.directory / "in-place.yml").write_text(text)
        job_id = site.run("submit", "--parsable", str(site.directory / "in-place.yml"), str(folder / "model")).strip()
        until(partial(first_steps, site, job_id), lambda: f"the first step:\n{site.run('logs', job_id)}")
        second = test_scaler.submit(site, "second")
        until(lambda: show(site, job_id)["learners"] == 2, lambda: f"{show(site, job_id)}\n{site.log}")
        until(lambda: "in 2 processes with batch 32" in site.run("logs", job_id), lambda: site.run("logs", job_id))
        site.run("wait", job_id)
        (site.directory / "finish-second").touch()
        site.run("wait", second)
        job, log = show(site, job_id), site.run("logs", "--learner", "1", job_id)
        assert job["state"] == "COMPLETED", log
        (attempt,) = job["attempts"]
        assert (attempt["learners"], [one["learners"] for one in attempt["resizes"]]) == (3, [2])
        check_continued(log, 20000)
        events = (Path(job["job_dir"]) / "attempt-1" / "events" / "node-0.jsonl").read_text()
        assert events.count("learner_started") == 1, "the agent of the first learner stayed"
        result = json.loads((Path(job["results"]) / "result.json").read_text())
        assert (result["samples"], result["learning_rate"]) == (20000, pytest.approx(0.02 * 32 / 48))


def check_continued(log: str, samples: int) -> None:
    """Each step begins where the one before ended, or where the processes continued: at most one step later, of which
    the loss could not be added up any more."""
    end = 0
    for found in re.finditer(r"\bsamples (\d+)-(\d+)\b|continuing after (\d+) samples", log):
        first = int(found[1] or found[3])
        assert first == end or (found[3] and first == end + 48), found[0]
        end = int(found[2] or found[3])
    assert end == samples

"""`ffdl bench share` with real runs on this machine: a real daemon, controllers, collectors and learners.

The learners report a lower speed while the other one runs, so the figures do not depend on the speed of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.fakes.sharing_learner import PROGRAM

MANIFEST = """
name: {name}
evaluation_metrics: {{type: regex_extractor}}
gpus: {gpus}
cpus: 1
memory: 100MB
framework: {{name: custom, version: python-numpy, command: python3 train.py {world} {alone} {together}}}
"""
CONFIG = '[rates]\ncurrency = "EUR"\ncpu_hour = 3.6\ngpu_hour = 36\n[backend.local]\ngpus = {gpus}\n'


@pytest.fixture
def gpus() -> int:
    """GPUs that the machine has, as its configuration says."""
    return 0


@pytest.fixture
def site(tmp_path: Path, gpus: int) -> Iterator[Site]:
    (tmp_path / "model").mkdir()
    (tmp_path / "world").mkdir()
    (tmp_path / "model" / "train.py").write_text(PROGRAM)
    (tmp_path / "config.toml").write_text(CONFIG.format(gpus=gpus))
    environment = {"FFDL_BACKEND": "local", "FFDL_CONFIG": str(tmp_path / "config.toml")}
    with site_in(tmp_path, more_environment=environment) as made:
        made.launch(program=PLAIN)
        until(made.is_served, f"the daemon to answer; its log:\n{made.log}")
        yield made


def write(site: Site, name: str, alone: int, together: int, gpus: float = 0) -> str:
    path = site.directory / f"{name}.yml"
    path.write_text(
        MANIFEST.format(name=name, gpus=gpus, world=site.directory / "world", alone=alone, together=together)
    )
    return str(path)


@pytest.mark.parametrize(
    ("together", "asked", "gain", "pays"),
    [((80, 120), 0, 1.4, True), pytest.param((40, 100), 1, 0.9, False, marks=pytest.mark.full)],
)
def test_bench_share_measures_jobs_together_and_alone_on_cpus(
    site: Site, together: tuple[int, int], asked: int, gain: float, pays: bool
) -> None:
    """This machine has no GPU, so jobs that ask for one share its CPUs, too."""
    manifests = [write(site, "ab"[n], 100 * (n + 1), speed, asked) for n, speed in enumerate(together)]
    done = site.try_to("bench", "share", "--json", "--seconds", "2", *manifests)
    assert done.returncode == 0, done.stderr
    assert "batch.nodelist" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["sharing"]
    assert (found["resource"], found["same_device"], found["pays"]) == ("CPU", True, pays)
    assert found["gain"] == pytest.approx(gain)
    for n, (subject, speed) in enumerate(zip(found["subjects"], together, strict=True), 1):
        assert subject["alone"]["speed"]["samples_per_s"] == pytest.approx(100 * n)
        assert subject["together"]["speed"]["samples_per_s"] == pytest.approx(speed)
        assert (subject["alone"]["held"]["cpus"], subject["together"]["held"]["cpus"]) == (1.0, 0.5)
        assert subject["alone"]["cost"] == pytest.approx(3.6 / 3600 * 1000 / (100 * n))
        assert subject["together"]["cost"] == pytest.approx(0.5 * 3.6 / 3600 * 1000 / speed)
        assert subject["samples"] == 9000
    listed = json.loads(site.run("list", "--json"))["jobs"]
    assert [(job["name"], job["state"]) for job in listed] == [
        ("bench-b", "CANCELLED"), ("bench-a", "CANCELLED"), ("bench-b", "CANCELLED"), ("bench-a", "CANCELLED"),
    ]  # fmt: skip


@pytest.mark.parametrize("gpus", [1])
def test_bench_share_prints_refusal_of_backend_without_shares(site: Site) -> None:
    manifests = [write(site, name, 100, 50, gpus=1) for name in "ab"]
    done = site.try_to("bench", "share", *manifests)
    assert done.returncode == 78, done.stderr
    assert "0.5 GPUs: shares of a GPU are not offered here" in done.stderr
    assert json.loads(site.run("list", "--json"))["jobs"] == []

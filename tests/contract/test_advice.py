"""Advice of a real daemon, over jobs of two sizes that ran on this machine. The figures are recomputed by hand."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.contract.daemon_rig import PLAIN, Site, site_in, until

TRAIN = """
import os, pathlib, time
if os.environ["LEARNER_ID"] == "1":
    speed = {"1": 100, "2": 180}[os.environ["WORLD_SIZE"]]
    print(f"ffdl-throughput: samples={speed} seconds=1 remaining=9000", flush=True)
while not pathlib.Path("GO").exists():
    time.sleep(0.02)
"""
SPEEDS = {1: 100.0, 2: 180.0}
RUNNING = ("DOWNLOADING", "PROCESSING")
MANIFEST = """
name: advised
cpus: 0.5
memory: 100MB
framework: {name: custom, version: python-numpy, command: python3 train.py}
batch:
  time: 2h
  elastic: {max_learners: 2, batch: {min: 8, max: 16, per_gpu_max: 16, start: 8}}
"""


def run_of(site: Site, base: Path, learners: int) -> tuple[float, float, int]:
    """Run a job of this size. Return its seconds on the node, those of its learners, and the most memory sampled."""
    go = base / "go"
    go.unlink(missing_ok=True)
    job_id = site.run(
        "submit", "--parsable", "--learners", str(learners), str(base / "m.yml"), str(base / "model")
    ).strip()

    def uses() -> list[Any]:
        lines = site.run("metrics", "--usage", "--json", job_id).splitlines()
        found = [json.loads(line)["usage"]["sample"]["learners"] for line in lines]
        return [use for learners in found for use in learners.values() if use["memory_bytes"]]

    def shown() -> Any:
        return json.loads(site.run("show", "--json", job_id))["job"]

    until(uses, f"a usage sample; {site.log}")
    until(lambda: shown()["expected_end"], f"the expected end; {site.log}")
    lines = map(json.loads, site.run("metrics", "--json", job_id).splitlines())
    (reported,) = (line["metrics"]["record"]["meta"]["time"] / 1000 for line in lines)
    job = shown()
    assert job["expected_end"] == pytest.approx(reported + 9000 / SPEEDS[learners])
    assert job["limit_at"] == min(at for state, at in job["timestamps"].items() if state in RUNNING) + 7200
    go.touch()
    site.run("wait", job_id)
    events = [json.loads(line)["event"] for line in site.run("events", "--json", job_id).splitlines()]
    at = {event["state"]: event["at"] for event in events}
    began = min(at[state] for state in RUNNING if state in at)
    trained = at.get("STORING", at["COMPLETED"]) - at["PROCESSING"]
    return at["COMPLETED"] - began, trained, max(use["memory_bytes"] for use in uses())


def test_advise_predicts_times_of_jobs_that_ran_in_two_sizes(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(TRAIN.replace("GO", str(tmp_path / "go")))
    (tmp_path / "m.yml").write_text(MANIFEST)
    with site_in(tmp_path, more_environment={"FFDL_BACKEND": "local"}) as site:
        site.launch(program=PLAIN)
        until(site.is_served, f"the daemon to answer; its log:\n{site.log}")
        empty = json.loads(site.run("advise", "--json", str(tmp_path / "m.yml")))["advice"]
        assert (empty["jobs"], empty["choices"], [one["learners"] for one in empty["profile"]]) == ([], [], [1, 2])
        runs = {learners: run_of(site, tmp_path, learners) for learners in (1, 2)}
        advice = json.loads(site.run("advise", "--json", str(tmp_path / "m.yml")))["advice"]
        shown = site.run("advise", str(tmp_path / "m.yml"))
    work = statistics.median(SPEEDS[learners] * trained for learners, (_, trained, _) in runs.items())
    overhead = statistics.median(run_s - trained for run_s, trained, _ in runs.values())
    usual = {one["form"]["learners"]: one for one in advice["choices"] if one["form"]["batch"] == 8}
    assert set(usual) == {1, 2}
    for learners, choice in usual.items():
        assert choice["samples_per_s"] == pytest.approx(SPEEDS[learners], rel=0.1) and not choice["extrapolates"]
        assert choice["time_s"] == pytest.approx(overhead + work / choice["samples_per_s"])
        assert choice["cpu_hours"] == pytest.approx(0.5 * learners * choice["time_s"] / 3600)
        assert choice["time_limit_s"] == 300 * math.ceil(1.2 * runs[learners][0] / 300)
    cost = {learners: learners * choice["time_s"] for learners, choice in usual.items()}
    best = 2 if cost[2] <= 1.25 * min(cost.values()) and usual[2]["time_s"] < usual[1]["time_s"] else 1
    assert [one["form"] for one in advice["choices"] if one["recommended"]] == [usual[best]["form"]]
    peak = max(memory for _, _, memory in runs.values())
    assert advice["memory"] == {
        "advised_bytes": 100_000_000 * math.ceil(1.2 * peak / 100_000_000), "peak_bytes": peak, "attempts": 2,
    }  # fmt: skip
    assert shown.startswith("Advice for:          advised (custom on local)\nBased on:            2 jobs: ")

"""`make bench BENCH=load` in a short form, so that it cannot rot. It judges what is counted, and no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_slurm.commands import squeue_argv
from ffdl_slurm.observing.parsers import parse_squeue
from tests.benchmarks.__main__ import main
from tests.benchmarks.place import Place
from tests.benchmarks.ready_slurm import ReadySlurm

pytestmark = pytest.mark.full

JOBS, SECONDS = 50, 2


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The figures by measure and who."""
    output = tmp_path_factory.mktemp("bench") / "bench.json"
    knobs = [f"--load={JOBS}", f"--seconds={SECONDS}", "--settle=0", "--repeat=1", "--batch=3"]
    assert main(["load", *knobs, f"--output={output}"]) == 0
    found = json.loads(Path(output).read_text())["figures"]
    return {f"{one['measure']}, {one['who']}": one for one in found}


def test_load_benchmark_records_expected_samples_of_every_measure(figures: dict[str, dict[str, float]]) -> None:
    counts = {name: one["n"] for name, one in figures.items()}
    processes = ["ffdl list", "ffdl list -t FAILED", "ffdl list --array", "ffdl-submit"]
    at_rest = ["daemon itself, of one core", "its children, of one core", "squeue calls", "other scheduler calls"]
    asked = ["SQL statements", "commits", "reads and writes", "accepted", "handed to the fake Slurm"]
    assert counts == {
        **{f"{name}, ffdl": 1 for name in (*processes, *at_rest, *asked)},
        "squeue, all jobs, fake": 1,
        "sbatch, fake": 1,
        "resident memory, ffdl": SECONDS,
        "one submission, durable, ffdl": 3,
    }


def test_daemon_polls_squeue_once_per_interval_for_all_jobs(figures: dict[str, dict[str, float]]) -> None:
    """Two looks fit into the window beside one at its edge; a call for each job would be 50 of them."""
    assert figures["squeue calls, ffdl"]["max"] <= 60 * 3 / SECONDS
    assert figures["other scheduler calls, ffdl"]["max"] == 0
    assert figures["SQL statements, ffdl"]["max"] * SECONDS / 60 < JOBS


def test_benchmark_slurm_commands_produce_parsable_slurm_output(tmp_path: Path) -> None:
    place = Place(tmp_path)
    slurm = ReadySlurm(place)
    ids = []
    for name, array in (("one-1", ""), ("many-1", "#SBATCH --array=0-2,7%4\n"), ("two-1", "")):
        script = tmp_path / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{array}#SBATCH --job-name={name}\nexec true\n")
        ids.append(place.command("sbatch", "--parsable", str(script)).strip())
    assert ids == ["101", "102", "103"]
    listed = parse_squeue(place.command(*squeue_argv()))
    tasks = [("102", task, "many-1") for task in "0127"]
    assert [(one.job, one.tasks, one.name) for one in listed] == [
        ("101", None, "one-1"),
        *tasks,
        ("103", None, "two-1"),
    ]
    named = parse_squeue(place.command(*squeue_argv("many-1", "no-1")))
    assert [(one.job, one.tasks, one.name) for one in named] == tasks
    assert (slurm.listed(), slurm.asked()) == (6, {"sbatch": 3, "squeue": 2, "others": 0})

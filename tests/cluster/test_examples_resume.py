"""The examples of `docs/checkpointing.md` on real Slurm: halted and resumed, they end like an uninterrupted run.

All run at once, each twice: one is halted and resumed, one is left alone. The manifests are the examples' own, with
other numbers of steps.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.executions import attempt_directory
from tests.cluster.images import CHECKOUT, provide_image
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.python_layers import SOURCE
from tests.cluster.trainings import attempt_log

pytestmark = pytest.mark.full


@dataclass(frozen=True, slots=True)
class Example:
    """`shorter` replaces texts of the manifest's command; `ask_at` is a line of the log at which it is halted."""

    manifest: str
    shorter: Mapping[str, str]
    ask_at: str
    line: str
    steps: int
    result: str = "result.json"


LOOP = {"--steps 600": "--steps 300"}
SHELL = {"./train.sh 30": "./train.sh 40"}
STEP, ROUND = r"^step (\d+)", r"^round (\d+)"
EXAMPLES = {
    "loop": Example("loop/manifest.yml", LOOP, "step 60", STEP, 300),
    "restart-file": Example("restart-file/manifest.yml", {}, "step 35", STEP, 300, "result.txt"),
    "shell": Example("shell/manifest.yml", SHELL, "round 5", ROUND, 40, "result.txt"),
    "pytorch": Example("pytorch/manifest.yml", LOOP, "step 60", STEP, 300),
    "torchrun": Example("pytorch/torchrun.yml", LOOP, "step 60", STEP, 300),
}
Ended = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]


@pytest.fixture(scope="module")
def ended(cluster: Cluster, alice: Person) -> Ended:
    """For each example the job as it was halted, the same job at its end, and the one that was left alone."""
    provide_image(cluster, "pytorch")
    jobs: dict[str, tuple[str, str]] = {}
    halts: list[subprocess.Popen[str]] = []
    try:
        for name, example in EXAMPLES.items():
            job_id = _submit(alice, name)
            halts.append(_halt_at(alice, job_id, example.ask_at))
            jobs[name] = job_id, _submit(alice, name)
        for halt in halts:
            said, _ = halt.communicate(timeout=600)
            assert halt.returncode == 0, said
    finally:
        for halt in halts:
            cluster.kill(halt)
    asked = [job for job, _ in jobs.values()]
    halted = alice.finish_all(asked)
    for job in asked:
        alice.run("ffdl", "resume", job)
    finished = alice.finish_all(asked)
    whole = alice.finish_all([job for _, job in jobs.values()])
    return dict(zip(EXAMPLES, zip(halted, finished, whole, strict=True), strict=True))


def _halt_at(alice: Person, job_id: str, line: str) -> subprocess.Popen[str]:
    """Halt it once its first attempt's learner has written a line that begins so, whatever else is waited for."""
    log = f"{attempt_directory(alice, job_id)}/logs/learner-1/training-log.txt"
    script = 'until grep -qs "^$0" "$1"; do sleep 0.1; done; exec ffdl halt "$2"'
    return alice.popen("sh", "-c", script, line, log, job_id)


def _submit(alice: Person, name: str) -> str:
    """The example with another number of steps."""
    example = EXAMPLES[name]
    text = (CHECKOUT / "docs" / "examples" / example.manifest).read_text()
    for old, new in {**example.shorter, "grace_s: 30": "grace_s: 120"}.items():
        assert old in text, (example.manifest, old)
        text = text.replace(old, new)
    manifest = alice.write(f"~/manifests/example-{name}.yml", text)
    return alice.submit(manifest, f"{SOURCE}/docs/examples/{example.manifest.partition('/')[0]}/model")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_confirms_checkpoint_when_halted(ended: Ended, name: str) -> None:
    halted, _, _ = ended[name]
    assert halted["state"] == "HALTED", halted
    attempt = halted["attempts"][-1]
    assert attempt["checkpoint_confirmed"] and attempt["checkpoint_answered"], attempt
    assert attempt["interruption"] == "halt"


@pytest.mark.parametrize("name", EXAMPLES)
def test_resumed_example_produces_same_result_as_uninterrupted_run(alice: Person, ended: Ended, name: str) -> None:
    _, finished, whole = ended[name]
    assert (finished["state"], whole["state"]) == ("COMPLETED", "COMPLETED"), (finished, whole)
    file = EXAMPLES[name].result
    assert alice.read(f"{finished['results']}/{file}") == alice.read(f"{whole['results']}/{file}")


@pytest.mark.parametrize("name", EXAMPLES)
def test_resumed_example_continues_from_saved_step(alice: Person, ended: Ended, name: str) -> None:
    example, (_, finished, _) = EXAMPLES[name], ended[name]
    logs = [attempt_log(alice, finished, attempt) for attempt in (1, 2)]
    first, second = ([int(step) for step in re.findall(example.line, log, re.MULTILINE)] for log in logs)
    assert "RESUME=1" in logs[1]
    assert {*first, *second} == set(range(1, example.steps + 1))
    # A restart file is older than the request was: those few steps run again.
    assert name == "restart-file" or not set(first) & set(second)
    assert finished["attempt"] == 2

"""The manifests of `make bench BENCH="overheads concurrency"`."""

from __future__ import annotations

import pytest
import yaml

from tests.benchmarks.concurrency import TRAINING
from tests.benchmarks.overheads import TRAININGS
from tests.benchmarks.running import EXAMPLE, Training, manifest_of


@pytest.mark.parametrize("training", (*TRAININGS, TRAINING), ids=lambda one: one.manifest)
def test_manifest_has_the_command_image_and_memory_that_run_bare(training: Training) -> None:
    text = manifest_of(training, (EXAMPLE / "manifest.yml").read_text())
    found = yaml.safe_load(text)
    assert found["framework"]["command"] == training.command
    assert found["memory"] == f"{training.memory_mib}MiB" and found["gpus"] == 1
    assert (found["framework"]["name"] == "pytorch") == ("pytorch" in training.image)

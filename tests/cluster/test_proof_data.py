"""The proof of data in its short form; then what must be found when something of it is altered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.rig import Cluster
from tests.proof.data.breaks import AFTER
from tests.proof.data.scene import Scene
from tests.proof.data.values import SHORT

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """All jobs have ended."""
    with Scene(cluster, SHORT, seed=7) as made:
        made.run()
        yield made


def test_data_proof_finds_no_wrong_byte_and_no_leaked_secret(scene: Scene) -> None:
    found = scene.found()
    print(found.report())
    assert found.troubles() == []
    assert found.holds


def test_data_proof_detects_altered_byte_in_bucket(scene: Scene) -> None:
    assert scene.results().wrong == []
    AFTER["bytes"](scene)
    assert [text.rpartition("/")[2] for text in scene.results().wrong] == ["-dash has other bytes"]


def test_data_proof_detects_lost_metric_record(scene: Scene) -> None:
    AFTER["metrics"](scene)
    assert scene.metrics()[1] == [f"losses: {SHORT.records - 1} records of {SHORT.records}"]


def test_data_proof_detects_secret_in_training_log(scene: Scene) -> None:
    AFTER["secret"](scene)
    (place, *answers) = scene.leaks()
    assert place.endswith(f"{scene.ids['losses']}/attempt-1/logs/learner-1/training-log.txt")
    assert answers == ["what ffdl logs says"]

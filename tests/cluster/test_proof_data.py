"""The proof of data in its short form; then what must be found when something of it is altered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.rig import Cluster
from tests.proof.data.breaks import AFTER
from tests.proof.data.scene import Scene
from tests.proof.data.values import SHORT


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """All jobs have ended."""
    with Scene(cluster, SHORT, seed=7) as made:
        made.run()
        yield made


def test_every_byte_arrives_and_no_secret_does(scene: Scene) -> None:
    found = scene.found()
    print(found.report())
    assert found.troubles() == []
    assert found.holds


def test_an_altered_byte_in_the_bucket_is_found(scene: Scene) -> None:
    assert scene.results().wrong == []
    AFTER["bytes"](scene)
    assert [text.rpartition("/")[2] for text in scene.results().wrong] == ["-dash has other bytes"]


def test_a_record_that_is_lost_is_found(scene: Scene) -> None:
    AFTER["metrics"](scene)
    assert scene.metrics()[1] == [f"losses: {SHORT.records - 1} records of {SHORT.records}"]


def test_a_secret_in_a_log_is_found(scene: Scene) -> None:
    AFTER["secret"](scene)
    (place, *answers) = scene.leaks()
    assert place.endswith(f"{scene.ids['losses']}/attempt-1/logs/learner-1/training-log.txt")
    assert answers == ["what ffdl logs says"]

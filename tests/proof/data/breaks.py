"""Ways to break what is proved, so that it can be seen that the proof fails then."""

from __future__ import annotations

from collections.abc import Callable

from tests.proof.data.manifests import PASSWORD
from tests.proof.data.scene import Scene
from tests.proof.data.values import MAIN, RESULTS

BEFORE = ("cache", "code", "control", "faults", "set")
"""What a scene does itself: no cache, credentials that do not expire, a learner without the secret, no faults, another
byte in the data set."""


def alter_result(scene: Scene) -> None:
    """One byte of a result is another one in the bucket."""
    scene.store.alter(RESULTS, f"{scene.ids[MAIN]}/copy-1/-dash")


def leak(scene: Scene) -> None:
    """A log has a secret in it."""
    log = scene.file_of("losses", "logs/learner-1/training-log.txt")
    log.write_bytes(log.read_bytes() + f"{scene.values[PASSWORD]}\n".encode())


def lose_record(scene: Scene) -> None:
    """The last record of a collector is gone."""
    records = scene.file_of("losses", "metrics/learner-1.jsonl")
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[:-1]))


AFTER: dict[str, Callable[[Scene], None]] = {"bytes": alter_result, "secret": leak, "metrics": lose_record}
"""When all jobs have ended."""

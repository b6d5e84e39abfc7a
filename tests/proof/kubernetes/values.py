"""What the other modules agree on: options of a run, and what came of a point. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

TOO_MANY_CPUS = 100_000
"""No node has so many."""
MISSING_IMAGE = "registry.invalid/ffdl-batch/none:1"
"""No registry has it: the name never resolves (RFC 6761)."""


class Word(StrEnum):
    """What is said of a point."""

    PASSED = "passed"
    FAILED = "failed"
    IMPOSSIBLE = "not possible here"


@dataclass(frozen=True, slots=True)
class Options:
    """`patience_s` bounds each wait. `uid` is that of pods, `python` the interpreter in the controller's image. `store`
    is the address of this machine at which pods find the store that the proof serves ("" = by the nodes' addresses).
    `claim_class` is the StorageClass of a claim ("" = none is made).
    `debugging`: the tenant may run commands in its pods."""

    controller_image: str
    learner_image: str
    pull_policy: str = "IfNotPresent"
    python: str = "/usr/bin/python3"
    uid: int = 1000
    patience_s: float = 180.0
    image_patience_s: int = 20
    store: str = ""
    claim_class: str = ""
    broken: str = ""
    debugging: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """`text` says what was seen, or why the point did not pass."""

    point: str
    word: Word
    text: str
    seconds: float

    def line(self) -> str:
        """As it is printed."""
        return f"{self.word:17}  {self.seconds:6.1f} s  {self.point}: {self.text}"


class Failed(Exception):
    """The point is not so; the message says what was seen."""


class Impossible(Exception):
    """This cluster lacks what the point needs; the message says what it shows of that."""


def summary(results: Sequence[Result]) -> str:
    """The counts, for the last line."""
    counts = " ".join(f"{word} {sum(one.word is word for one in results)}" for word in Word)
    return f"points {len(results)} {counts}"


def holds(results: Sequence[Result], *, strict: bool) -> bool:
    """Whether something passed and nothing failed; with `strict`, what is not possible is a failure, too."""
    words = {one.word for one in results}
    return Word.PASSED in words and Word.FAILED not in words and not (strict and Word.IMPOSSIBLE in words)


BREAKS = ("bytes", "image", "role", "security", "tenants")
"""Faults that `--break` injects: another byte in the store, a controller's image that does not exist, a daemon without
its role, a namespace that accepts any pod, a second tenant that admits daemons and learners of the first."""

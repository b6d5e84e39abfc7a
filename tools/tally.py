"""What the tiers of `make test` did, counted; what was left out is a failure on CI."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

# Tests that may be skipped on CI, by their id (file::name). Empty on purpose.
ALLOWED_SKIPS: frozenset[str] = frozenset()


@dataclass
class Tally:
    """What one tier did. `cpu_s`: seconds of a core, those of processes that were waited for. `troubles` are sentences
    for the end of the run."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    cpu_s: float = 0
    troubles: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another tier in."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.cpu_s += other.cpu_s
        self.troubles += other.troubles

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def refuse(sentence: str) -> Tally:
    """Something that did not happen: a failure on CI, elsewhere it is only said."""
    return Tally(failed=1 if on_ci() else 0, troubles=[sentence])


def on_ci() -> bool:
    """Whether this is the run that must leave nothing out."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def read_report(report: Path, *, ci: bool) -> Tally:
    """Count a JUnit report; on CI a skipped test that is not allowed to be is a failure."""
    tally = Tally()
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it just now
        test = f"{case.get('classname', '')}::{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed += 1
            tally.troubles.append(f"failed: {test}")
        elif (skip := case.find("skipped")) is not None:
            tally.skipped += 1
            tally.troubles.append(f"skipped: {test}: {skip.get('message', '')}")
            if ci and test not in ALLOWED_SKIPS:
                tally.failed += 1
        else:
            tally.passed += 1
    return tally

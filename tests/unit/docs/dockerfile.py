"""Reads a Dockerfile: instructions in their order, with continued lines joined."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One of them; `stage` counts from 0."""

    stage: int
    word: str
    rest: str


def read_dockerfile(path: Path) -> list[Instruction]:
    """All instructions after the global arguments."""
    text = re.sub(r"(?m)^\s*#.*\n", "", path.read_text())
    lines = [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    found, stage = [], -1
    for line in lines:
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        found.append(Instruction(stage, word, re.sub(r"\s+", " ", rest.strip())))
    return found

"""The page on checkpoints shows the examples as they are, and names what the manifest and the contract have."""

from __future__ import annotations

import re
import textwrap

import pytest

from ffdl_batch.domain.job.spec import Checkpoint, Retry
from ffdl_batch.domain.outcome.continuation import FRUITLESS_IN_A_ROW, Budget
from tests.unit.docs.shown import ROOT

PAGE = (ROOT / "docs" / "checkpointing.md").read_text()
EXAMPLES = ("loop", "pytorch", "shell", "restart-file")
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(examples/[\w./-]+/model/[\w.-]+)`")


def excerpts() -> list[tuple[str, str]]:
    """Each block of code with the file that was named last before it."""
    found = []
    for block in _BLOCK.finditer(PAGE):
        named = _FILE.findall(PAGE[: block.start()])
        assert named, "a block stands before any file is named"
        found.append((named[-1], block[2]))
    return found


@pytest.mark.parametrize(("file", "text"), excerpts())
def test_checkpointing_page_shows_code_of_example_files(file: str, text: str) -> None:
    lines = (ROOT / "docs" / file).read_text().splitlines()
    wanted = text.rstrip("\n").splitlines()
    windows = ("\n".join(lines[start : start + len(wanted)]) for start in range(len(lines)))
    assert any(textwrap.dedent(window) == "\n".join(wanted) for window in windows), f"{file} has no such lines"


def test_checkpointing_page_shows_every_example() -> None:
    assert {file.split("/")[1] for file, _ in excerpts()} == set(EXAMPLES)
    assert all((ROOT / "docs" / "examples" / name / "manifest.yml").is_file() for name in EXAMPLES)


def test_checkpointing_page_names_default_values_of_code() -> None:
    budget = Budget()
    for name in ("timeouts", "preemptions", "node_failures", "failures"):
        assert f"`{name}` ({getattr(budget, name)})" in PAGE
    assert f"`batch.checkpoint.grace_s` ({Checkpoint().grace_s})" in PAGE
    assert f"{Checkpoint().signal} by default" in PAGE
    assert "the third attempt in a row" in PAGE
    assert FRUITLESS_IN_A_ROW == 3
    assert Retry().gpu_hours is None

"""The figures of `make shape`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import shape

SOURCE = '''"""Nobody is told."""

import os  # one line of code


class Public:
    """Documented."""

    def method(self) -> str:
        # only a comment
        return f"it goes on {os.name}"


def _private() -> None:
    """Returns."""
'''


def test_measure_counts_code_docstrings_and_listed_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "ROOT", tmp_path)
    path = tmp_path / "ffdl_batch" / "a.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    found = shape.Shape()
    shape.measure(path, found)
    assert (found.files, found.lines, found.code) == (1, 15, 5)
    assert (found.public, found.documented, found.long_functions) == (3, 2, [])
    assert found.words == {"nobody": 1, "told": 1, "goes on": 1}

"""The client's fixtures, for the command line, and what a drill takes."""

from pathlib import Path

import pytest

from tests.unit.cli.drill_stage import MANIFEST
from tests.unit.client.conftest import daemon, manifest, model, short_dir

__all__ = ["daemon", "manifest", "model", "short_dir"]


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A directory with a manifest, and the model beside it."""
    (tmp_path / "trial" / "model").mkdir(parents=True)
    (tmp_path / "trial" / "model" / "train.py").write_text("print('hello')\n")
    (tmp_path / "trial" / "manifest.yml").write_text(MANIFEST)
    return tmp_path / "trial"

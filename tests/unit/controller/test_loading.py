"""What a node needs before its learners start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.input_loading import find_data
from tests.unit.controller.rig import launch_file


@pytest.mark.parametrize(("is_file", "words"), [(False, "does not exist"), (True, "is not a directory")])
def test_find_data_names_directory_and_node(tmp_path: Path, is_file: bool, words: str) -> None:
    data = tmp_path / "data"
    launch = launch_file(str(tmp_path), needs_dirs=(str(tmp_path), str(data)))
    if is_file:
        data.touch()
    with pytest.raises(PhaseFailed) as caught:
        find_data(launch)
    assert caught.value.code == "S302"
    assert str(caught.value) == f"data directory {data} {words} on node {os.uname().nodename}"

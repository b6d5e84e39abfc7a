"""Failures of write(2) name no file by themselves: who reads of them is told which one it was."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffdl_batch.controller.machine.files import write_text


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow over 4 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_text_names_file_in_error_and_keeps_old_content(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text("before")
    with small_files(), pytest.raises(OSError, match="File too large") as failed:
        write_text(str(path), "x" * 8192)
    assert (failed.value.errno, failed.value.filename) == (errno.EFBIG, str(path))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("task.json", "before")]

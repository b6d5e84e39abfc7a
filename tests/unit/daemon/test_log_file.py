"""The daemon's log as JSON."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.daemon.log_file import log_to


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in kept:
            handler.close()
    root.handlers[:] = kept
    root.setLevel(level)


def test_record_is_a_json_object_of_one_line(tmp_path: Path) -> None:
    log_to(tmp_path / "log", log_json=True)
    logging.getLogger("ffdl_batch.x").warning("job %s:\n\x1b[31m\u00e9", "training-1")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("ffdl_batch.y").exception("failed")
    text = (tmp_path / "log").read_text()
    assert text.isascii() and "\x1b" not in text
    first, second = (json.loads(line) for line in text.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {"level": "WARNING", "logger": "ffdl_batch.x", "message": "job training-1:\n\x1b[31m\u00e9"}
    assert (second["message"], second["exception"].endswith("ValueError: wrong")) == ("failed", True)

"""Counts as a person reads them."""

from __future__ import annotations

import pytest

from ffdl_batch.controller.stores.progress import text_of
from ffdl_batch.domain.array import why_elements_wait
from ffdl_batch.domain.numbers import counted
from ffdl_batch.domain.staging import Done


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files")],
)  # fmt: skip
def test_one_is_no_plural(number: int, text: str) -> None:
    assert counted(number, "file") == text


def test_sentences_with_one() -> None:
    assert counted(1, "process", "processes") == "1 process" and counted(2, "entry", "entries") == "2 entries"
    assert why_elements_wait(1) == "1 element of its array runs at once, and no more"
    assert why_elements_wait(2).startswith("2 elements of its array run at once")
    assert text_of(Done(1, 0, 0, 0.0, 1)) == "1 file, 1 of them was there, 0 B in 0 s"

"""Counts and sizes as a person reads them."""

from __future__ import annotations

import pytest

from ffdl_batch.controller.stores.progress import text_of
from ffdl_batch.domain.array import why_elements_wait
from ffdl_batch.domain.numbers import counted, size_text
from ffdl_batch.domain.staging import Done


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files")],
)  # fmt: skip
def test_counted_uses_singular_only_for_one(number: int, text: str) -> None:
    assert counted(number, "file") == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (-1, "0 B"), (0, "0 B"), (1023, "1023 B"), (1023.4, "1023 B"), (1023.5, "1 KiB"), (1234, "1.21 KiB"),
        (102_340, "99.9 KiB"), (102_360, "100 KiB"), (1023 << 20, "1023 MiB"), (1 << 30, "1 GiB"), (3.2e9, "2.98 GiB"),
        (1 << 50, "1 PiB"), (5000 << 50, "5000 PiB"),
    ],
)  # fmt: skip
def test_size_text_prints_three_digits_with_binary_unit(size: float, text: str) -> None:
    assert size_text(size) == text


def test_messages_use_correct_singular_and_plural_forms() -> None:
    assert counted(1, "process", "processes") == "1 process" and counted(2, "entry", "entries") == "2 entries"
    assert why_elements_wait(1) == "1 element of its array runs at once, and no more"
    assert why_elements_wait(2).startswith("2 elements of its array run at once")
    assert text_of(Done(1, 0, 0, 0.0, 1)) == "1 file, 1 of them was there, 0 B in 0 s"

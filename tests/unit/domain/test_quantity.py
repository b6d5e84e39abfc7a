"""Sizes, time limits and numbers as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.controller.data.transfer_progress import text_of
from ffdl_batch.domain.data.staging_protocol import Done
from ffdl_batch.domain.job.array import why_elements_wait
from ffdl_batch.domain.number_text import counted, size_text, whole_number
from ffdl_batch.domain.quantity import (
    format_size,
    format_time_limit,
    parse_decimal,
    parse_size,
    parse_slurm_memory,
    parse_time_limit,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1Gb", 10**9), ("1GB", 10**9), ("8G", 8 * 10**9), ("1GiB", 2**30), ("1 GiB", 2**30), ("512Mi", 512 * 2**20),
        ("300mib", 300 * 2**20), ("8.5GB", 85 * 10**8), ("1TB", 10**12), (" 1TiB ", 2**40), (".5gb", 5 * 10**8),
        ("100B", 100),
    ],
)  # fmt: skip
def test_parse_size_accepts_decimal_and_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["512", "", "GB", "-1GB", "1GBfoo", "1 2GB", "0GB", "1e3GB", "1,5GB", "9" * 99 + "GB", "٣GB"]
)
def test_parse_size_rejects_malformed_or_zero_size(text: str) -> None:
    with pytest.raises(ValueError, match="512GB or 512MiB" if text == "512" else "size|unit|nothing"):
        parse_size(text)


@given(st.integers(min_value=1, max_value=2**60))
def test_format_size_round_trips_within_one_percent(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300), ("5:30", 330), ("1:02:03", 3723), ("2-0", 172800), ("1-12:30", 131400), ("1-1:1:1", 90061),
        ("2h30m", 9000), ("90s", 90), ("1w2d", 777600), ("15min", 900),
    ],
)  # fmt: skip
def test_parse_time_limit_accepts_slurm_and_unit_forms(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "1:2:3:4", "x", "1-", "-1-2", "h", "１", "5:", "1d 2h", "0:0"])
def test_parse_time_limit_rejects_malformed_or_zero_limit(text: str) -> None:
    with pytest.raises(ValueError, match="time limit"):
        parse_time_limit(text)


@given(st.integers(min_value=1, max_value=10**8))
def test_format_time_limit_round_trips_exactly(seconds: int) -> None:
    assert parse_time_limit(format_time_limit(seconds)) == seconds


def test_parse_slurm_memory_uses_sbatch_default_unit_and_rejects_bad_unit() -> None:
    assert parse_slurm_memory("4000") == 4000 * 2**20
    assert parse_slurm_memory("8G") == 8 * 2**30
    for text in ("8GiBs", "٣", "²G", "9" * 5000):
        with pytest.raises(ValueError, match="sbatch"):
            parse_slurm_memory(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("7", 7), ("007", 7), ("100", 100), ("0" * 9000 + "9", 9), ("101", None), ("9" * 5000, None),
        ("", None),
        ("²", None), ("٣", None), ("-1", None), ("+1", None), ("1_0", None), (" 1", None), ("1.0", None), ("1e1", None),
    ],
)  # fmt: skip
def test_whole_number_is_ascii_digits_up_to_a_limit(text: str, number: int | None) -> None:
    assert whole_number(text, 100) == number


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "one", ""])
def test_parse_decimal_rejects_non_finite_and_non_numeric_text(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_decimal(text)


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


def test_messages_use_singular_only_for_one() -> None:
    assert [counted(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert counted(1, "process", "processes") == "1 process" and counted(2, "entry", "entries") == "2 entries"
    assert why_elements_wait(1) == "1 element of its array runs at once, and no more"
    assert why_elements_wait(2).startswith("2 elements of its array run at once")
    assert text_of(Done(1, 0, 0, 0.0, 1)) == "1 file, 1 of them was there, 0 B in 0 s"

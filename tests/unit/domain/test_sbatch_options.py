"""Items of batch.slurm.args: which options sbatch gets, and why it does not get the others."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.sbatch.option_table import TABLE
from ffdl_batch.domain.sbatch.script_options import NotPassed, SbatchOption, check_number, read_passed
from ffdl_batch.domain.sbatch.values import is_flag_set, read_events


def test_passed_options_accept_passed_rows_alone() -> None:
    for row in TABLE:
        if row.is_passed:
            assert read_passed(f"--{row.name}") == SbatchOption(row.name)
            assert read_passed(f"--{row.name}=a b=c") == SbatchOption(row.name, "a b=c")
            continue
        with pytest.raises(NotPassed, match=f"--{row.name} ") as caught:
            read_passed(f"--{row.name}=x")
        assert caught.value.cure in (f"use {row.key}", row.refused, "it is an option of ffdl-submit"), row


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("--wait-all-nodes=1", "the controllers wait for all nodes before a learner starts"),
        ("--power=level", "sbatch 26.05 lists it in its help and refuses it"),
        ("--priority=1", "use batch.priority"),
        ("--nosuch", "allowed are acctg-freq, bb, "),
        ("--excl", "allowed are acctg-freq, bb, "),
        ("-p", "write --name or --name=value as one item"),
        ("--nice 5", "write --name or --name=value as one item"),
        ("5", "write --name or --name=value as one item"),
    ],
)
def test_passed_options_reject_option_with_cure(text: str, cure: str) -> None:
    with pytest.raises(NotPassed) as caught:
        read_passed(text)
    assert caught.value.cure.startswith(cure)


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("--mincpus=4", True), ("--mincpus=0", False), ("--mincpus=2.5", False), ("--mincpus", False),
        ("--core-spec=0", True), ("--core-spec=x", False), ("--threads-per-core=-1", False),
        ("--nice", True), ("--nice=-5", True), ("--nice=", False), ("--nice=low", False),
        ("--switches=1@1:00:00", True), ("--switches=1@soon", False), ("--tmp=10G", True), ("--tmp=1X", False),
        ("--time-min=1-0", True), ("--time-min=1h", False), ("--time-min=" + "9" * 14, False),
        ("--delay-boot=UNLIMITED", True), ("--delay-boot=?", False), ("--acctg-freq=task=30,energy=0", True),
        ("--acctg-freq=task=x", False), ("--extra-node-info=2:4-8:*", True), ("--extra-node-info=2:x", False),
        ("--exclusive", True), ("--exclusive=user", True), ("--exclusive=job", False), ("--segment=4", True),
        ("--segment=0", False), ("--hint=nomultithread", True), ("--contiguous", True),
    ],
)  # fmt: skip
def test_passed_options_check_numbers_and_durations(text: str, is_accepted: bool) -> None:
    option = read_passed(text)
    if is_accepted:
        check_number(option)
        return
    with pytest.raises(NotPassed, match=f"--{option.name}: .* is not a value that sbatch accepts"):
        check_number(option)


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        ("", True),
        ("yes", True),
        ("1", True),
        ("-2", True),
        ("0", False),
        ("no", False),
        (None, False),
        ("--1", False),
        ("²", False),
    ],
)
def test_is_flag_set_treats_zero_no_and_unset_as_false(value: str | None, counts: bool) -> None:
    assert is_flag_set(value) is counts


@pytest.mark.parametrize(
    ("text", "events", "unknown"),
    [
        ("end, fail", ("END", "FAIL"), ()),
        ("NONE", ("NONE",), ()),
        ("NONE,END", ("END",), ()),
        ("END,soon", ("END",), ("SOON",)),
        ("", (), ()),
    ],
)
def test_read_events_drops_none_beside_other_events(
    text: str, events: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    assert read_events(text.split(",")) == (events, unknown)

"""Indexes as sbatch reads them, and what an array's spec stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.domain.codec import from_plain, to_plain
from ffdl_batch.domain.job.array import (
    MAX_ELEMENTS,
    MAX_INDEX,
    ArrayId,
    chunk_name,
    element_environment,
    expand,
    is_array_id,
    join_indexes,
    new_array_id,
    parse_chunk_name,
    read_indexes,
)
from ffdl_batch.domain.job.job import MAX_TOKEN, is_token
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec

ARRAY = ArrayId("array-0a1b2c3d4")
SPEC = JobSpec("digits", Framework("custom", "x", "true"))


def spec(**batch: object) -> JobSpec:
    return replace(SPEC, batch=BatchOptions(**batch))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "values", "limit"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-9%2", tuple(range(10)), 2),
        ("1,3,5", (1, 3, 5), None),
        ("0-12:4", (0, 4, 8, 12), None),
        ("7", (7,), None),
        (" 5,1-2,2%10 ", (1, 2, 5), 10),
        ("0-0:5", (0,), None),
        (f"{MAX_INDEX}", (MAX_INDEX,), None),
        pytest.param(f"0-{MAX_ELEMENTS - 1}", tuple(range(MAX_ELEMENTS)), None, id="largest-array"),
    ],
)
def test_read_indexes_accepts_sbatch_syntax(text: str, values: tuple[int, ...], limit: int | None) -> None:
    found = read_indexes(text)
    assert (found.values, found.limit) == (values, limit)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a job array"),
        ("a", "is not a job array"),
        ("1-", "is not a job array"),
        ("-1", "is not a job array"),
        ("1..3", "is not a job array"),
        ("%2", "is not a job array"),
        ("0-9%", "is not a job array"),
        ("0:2", "is not a job array"),
        ("0-99999999999999999999", "is not a job array"),
        ("3-1", "ends before it begins; write 1-3"),
        ("0-4:0", "has a step of 0"),
        ("0-4%0", "%0 lets no element run"),
        ("0-10000", "has 10001 elements; an array has 10000 at most"),
        ("0-999999999", "has 1000000000 elements"),
        (f"{MAX_INDEX + 1}", "is too large for an index"),
    ],
)
def test_read_indexes_explains_invalid_array(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        read_indexes(text)
    assert why in str(error.value) and "; " in str(error.value)


@pytest.mark.parametrize("values", [(0,), (0, 1, 2), (1, 3, 4, 5, 9), tuple(range(0, 100, 3))])
def test_join_indexes_round_trips_through_read_indexes(values: tuple[int, ...]) -> None:
    assert read_indexes(join_indexes(values)).values == values


def test_expand_creates_one_element_spec_per_index() -> None:
    elements = expand(spec(array="2-8:3%2", env={"A": "1"}), ARRAY)
    assert [element.name for element in elements] == ["digits[2]", "digits[5]", "digits[8]"]
    assert all((one.batch.array, one.batch.sweep, one.batch.env) == ("", (), {"A": "1"}) for one in elements)
    second = elements[1].element
    assert second is not None
    assert (second.array, second.name, second.limit, second.values) == (ARRAY, "digits", 2, {})
    assert element_environment(second) == {
        "FFDL_ARRAY_ID": ARRAY, "FFDL_ARRAY_INDEX": "5", "SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_MAX": "8", "SLURM_ARRAY_TASK_STEP": "3",
    }  # fmt: skip


def test_expand_sets_sweep_variables_of_each_element_and_selects_elements_by_index() -> None:
    sweep = ({"lr": "0.1"}, {"lr": "0.01", "A": "2"}, {"lr": "3"})
    elements = expand(spec(sweep=sweep[:2], env={"A": "1"}), ARRAY)
    assert [dict(element.batch.env) for element in elements] == [{"A": "1", "lr": "0.1"}, {"A": "2", "lr": "0.01"}]
    assert [element.element and dict(element.element.values) for element in elements] == [
        dict(one) for one in sweep[:2]
    ]
    (third,) = expand(spec(sweep=sweep, array="2%1"), ARRAY)
    assert (third.name, third.batch.env) == ("digits[2]", {"lr": "3"})
    assert third.element is not None and (third.element.count, third.element.first) == (1, 2)


def test_array_element_round_trips_through_codec() -> None:
    (element, _) = expand(spec(sweep=({"lr": "0.1"}, {"lr": "1"})), ARRAY)
    assert from_plain(JobSpec, to_plain(element)) == element
    assert from_plain(JobSpec, to_plain(SPEC)).element is None


def test_array_ids_and_chunk_names_are_not_attempt_tokens() -> None:
    array = new_array_id()
    assert is_array_id(array) and not is_array_id("array-../../etc") and not is_array_id("training-0a1b2c3d4")
    name = chunk_name(array, 12)
    assert parse_chunk_name(name) == (array, 12)
    assert len(chunk_name(array, 999_999)) <= MAX_TOKEN and not is_token(name)
    assert [parse_chunk_name(text) for text in ("array-0a1b2c3d4", "array-0a1b2c3d4-0", "digits")] == [None] * 3

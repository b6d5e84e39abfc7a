"""Arrays of jobs: their ids, their indexes, and the elements that an array's spec stands for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NewType

from ffdl_batch.domain.job.job import Token, draw_characters
from ffdl_batch.domain.job.spec import Element, JobSpec
from ffdl_batch.host.fast_dataclass import dataclass

ArrayId = NewType("ArrayId", str)
"""`array-` and nine characters: also a DNS label and a directory name."""

MAX_ELEMENTS = 10_000
"""Maximum of one array. Each element is a job with a record and a directory of its own."""
MAX_INDEX = 4_000_000
"""The largest index that Slurm can be configured for (slurm.conf(5), MaxArraySize)."""
UNNUMBERED = "unnumbered"
"""Placeholder for the number of a chunk in names that are planned before it has one."""
_ARRAY_ID = re.compile(r"array-[0-9a-z]{9}", re.ASCII)
_CHUNK_NAME = re.compile(r"(array-[0-9a-z]{9})-([1-9][0-9]*)", re.ASCII)
_FORM = re.compile(r"(?P<indexes>\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*)(%(?P<limit>\d+))?", re.ASCII)
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
_MARK = re.compile(r"^array (array-[0-9a-z]{9}-[1-9][0-9]*) (\d+)$", re.ASCII | re.MULTILINE)
_DIGITS = 9
"""Numbers with more digits are refused before they are evaluated."""


def new_array_id() -> ArrayId:
    """Return a new id."""
    return ArrayId(f"array-{draw_characters()}")


def is_array_id(text: str) -> bool:
    """Return whether `text` has the form of an array's id, so that it may be used in a path."""
    return _ARRAY_ID.fullmatch(text) is not None


def chunk_name(array: str, number: int | str) -> Token:
    """Return the scheduler's name of the `number`-th native array of `array`. No other native array gets it."""
    return Token(f"{array}-{number}")


def number_chunk(text: str, array: str, number: int) -> str:
    """Return a text that was planned for a chunk without a number, with its number.

    No user's text can hold these names: the id was drawn after the text was written.
    """
    named = text.replace(f"{array}/chunk-{UNNUMBERED}", f"{array}/chunk-{number}")
    return named.replace(chunk_name(array, UNNUMBERED), chunk_name(array, number))


def parse_chunk_name(text: str) -> tuple[ArrayId, int] | None:
    """Return the parts of a name from :func:`chunk_name`; None if `text` is no such name."""
    match = _CHUNK_NAME.fullmatch(text)
    return (ArrayId(match[1]), int(match[2])) if match is not None else None


def mark_of(chunk: Token, task: str) -> str:
    """Return the line in an attempt's mark (:attr:`ffdl_batch.attempt.layout.AttemptDir.submit_begun`) that says as
    which task of a native array it was submitted."""
    return f"array {chunk} {task}\n"


def read_marks(text: str) -> list[tuple[Token, str]]:
    """Return the native arrays that a mark names, with the attempt's task in each."""
    return [(Token(match[1]), match[2]) for match in _MARK.finditer(text)]


@dataclass(frozen=True, slots=True)
class Indexes:
    """sbatch's --array, read: the indexes in order, and how many elements may run at once (None = all)."""

    values: tuple[int, ...]
    limit: int | None = None


def read_indexes(text: str) -> Indexes:
    """``0-9%2``, ``1,3,5``, ``0-12:4`` as sbatch reads them (an index that is named twice counts once).

    Raises ValueError "what is wrong; what is right".

    Nothing is written out before it is known to be small enough.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None or any(len(number) > _DIGITS for number in re.findall(r"\d+", text)):
        raise ValueError(f"{text[:60]!r} is not a job array; write indexes as 0-9, 1,3,5 or 0-99%10")
    ranges = [_read_range(part) for part in match["indexes"].split(",")]
    if sum(len(part) for part in ranges) > MAX_ELEMENTS:
        count = sum(len(part) for part in ranges)
        raise ValueError(f"{text[:60]!r} has {count} elements; an array has {MAX_ELEMENTS} at most")
    values = sorted({index for part in ranges for index in part})
    if values[-1] > MAX_INDEX:
        raise ValueError(f"{values[-1]} is too large for an index; the largest is {MAX_INDEX}")
    limit = int(match["limit"]) if match["limit"] is not None else None
    if limit == 0:
        raise ValueError("%0 lets no element run; write %1 or more, or leave it out")
    return Indexes(tuple(values), limit)


def _read_range(text: str) -> range:
    match = _PART.fullmatch(text)
    assert match is not None  # _FORM has seen it
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        raise ValueError(f"{text!r} ends before it begins; write {last}-{first}")
    if step == 0:
        raise ValueError(f"{text!r} has a step of 0; write 1 or more")
    return range(first, last + 1, step)


def is_array(spec: JobSpec) -> bool:
    """Return whether `spec` describes several jobs."""
    return bool(spec.batch.array or spec.batch.sweep)


def expand(spec: JobSpec, array: ArrayId) -> list[JobSpec]:
    """Return the spec of each element, by index. `spec` was checked: its indexes can be read, and a sweep has them all.

    With a sweep, `array` selects some of its elements; alone, it says how many there are.
    """
    indexes = read_indexes(spec.batch.array) if spec.batch.array else Indexes(tuple(range(len(spec.batch.sweep))))
    sweep: Mapping[int, Mapping[str, str]] = dict(enumerate(spec.batch.sweep))
    whole = Element(
        array=array,
        name=spec.name,
        index=0,
        count=len(indexes.values),
        first=indexes.values[0],
        last=indexes.values[-1],
        step=_step(indexes.values),
        limit=indexes.limit,
    )
    batch = replace(spec.batch, array="", sweep=())
    return [
        replace(
            spec,
            name=element_name(spec.name, index),
            batch=replace(batch, env={**batch.env, **sweep[index]}) if index in sweep else batch,
            element=replace(whole, index=index, values=sweep.get(index, {})),
        )
        for index in indexes.values
    ]


def element_name(array_name: str, index: int) -> str:
    """Return ``digits[3]``."""
    return f"{array_name}[{index}]"


def _step(values: Sequence[int]) -> int:
    """Return the distance between neighbouring indexes if it is always the same, else 1 (as SLURM_ARRAY_TASK_STEP)."""
    steps = {b - a for a, b in pairwise(values)}
    return steps.pop() if len(steps) == 1 else 1


def join_indexes(values: Sequence[int]) -> str:
    """Return ascending indexes in sbatch's notation: ``0-3,5,7-8``."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    return ",".join("-".join(map(str, part)) for part in parts)


def element_environment(element: Element) -> dict[str, str]:
    """Return the variables that say which element a learner belongs to: FfDL's and Slurm's.

    SLURM_ARRAY_JOB_ID is not among them: each attempt of an element is another job of the scheduler.
    """
    return {
        "FFDL_ARRAY_ID": element.array,
        "FFDL_ARRAY_INDEX": str(element.index),
        "SLURM_ARRAY_TASK_ID": str(element.index),
        "SLURM_ARRAY_TASK_COUNT": str(element.count),
        "SLURM_ARRAY_TASK_MIN": str(element.first),
        "SLURM_ARRAY_TASK_MAX": str(element.last),
        "SLURM_ARRAY_TASK_STEP": str(element.step),
    }


def why_elements_wait(limit: int | None) -> str:
    """Return why further elements wait: only `limit` of them may run at once."""
    elements = "1 element of its array runs" if limit == 1 else f"{limit} elements of its array run"
    return f"{elements} at once, and no more"

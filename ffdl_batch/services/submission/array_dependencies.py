"""Arrays in `batch.dependency`: the trainings that are their elements stand in their place once the job is accepted.

`afterok:array-…` waits for all elements; `aftercorr:array-…` of an array waits, each element for the one with its own
index. `array-…_3` is one element.
"""

from __future__ import annotations

import re

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.job import Job
from ffdl_batch.ports.scheduler import InvalidRequest
from ffdl_batch.services.platform import Platform

MAX_NAMED = 100_000
"""Conditions of one request: so many trainings, for so many elements."""

_ARRAY = re.compile(r"(array-[0-9a-z]{9})(?:_(\d{1,7}))?", re.ASCII)
_SAME_INDEX = "aftercorr"


class ArrayDependency:
    """A dependency's text with the arrays of this owner that it names. Raises InvalidRequest."""

    def __init__(self, platform: Platform, text: str, elements: int) -> None:
        """`elements` is how many jobs have this dependency."""
        self._text = text
        self._arrays: dict[str, dict[int, Job]] = {}
        for array in dict.fromkeys(match[1] for match in _ARRAY.finditer(text)):
            jobs = [job for job in platform.store.elements_of(array) if job.uid == platform.uid]
            if not jobs:
                raise _refusal(f"there is no array {array} to depend on", "ffdl list shows your jobs")
            self._arrays[array] = {job.spec.element.index: job for job in jobs if job.spec.element is not None}
        named = sum(len(jobs) for jobs in self._arrays.values())
        if named * elements > MAX_NAMED and elements > 1 and _SAME_INDEX not in text:
            message = f"{elements} elements would wait for {named} trainings each"
            raise _refusal(message, f"let each wait for one, with {_SAME_INDEX}, or depend from a single job")

    def of(self, index: int | None) -> str:
        """The text for the element of this index (None = a job of no array)."""
        if not self._arrays:
            return self._text
        return "".join(
            piece if piece in ",?" else self._item(piece, index) for piece in re.split(r"([,?])", self._text) if piece
        )

    def _item(self, item: str, index: int | None) -> str:
        kind, colon, ids = item.partition(":")
        if not colon:
            return item
        return f"{kind}:{':'.join(self._named(kind, one, index) for one in ids.split(':'))}"

    def _named(self, kind: str, text: str, index: int | None) -> str:
        found, plus, minutes = text.partition("+")
        match = _ARRAY.fullmatch(found)
        if match is None:
            return text
        elements = self._arrays[match[1]]
        wanted = int(match[2]) if match[2] is not None else index if kind == _SAME_INDEX else None
        if wanted is not None and wanted not in elements:
            raise _refusal(f"{match[1]} has no element {wanted} to depend on", "name one that it has")
        jobs = elements.values() if wanted is None else (elements[wanted],)
        return ":".join(f"{job.id}{plus}{minutes}" for job in jobs)


def _refusal(message: str, cure: str) -> InvalidRequest:
    finding = Finding(Severity.ERROR, message, cure, path="batch.dependency", code="C101")
    return InvalidRequest(f"{finding.path}: {message} ({cure})", (finding,))

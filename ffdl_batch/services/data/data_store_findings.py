"""What stores have answered at a submission, as findings at the manifest's lines. Pure.

A store that does not answer is told once, whatever is read from it and stored there; so is one trouble of one store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, StoreAddress, StoreKind, fault_code
from ffdl_batch.domain.findings import Finding, Severity

SURE = {
    FaultClass.CREDENTIALS: "correct user_name and password of the store, or what they refer to",
    FaultClass.MISSING: "correct the container, or make it and put the data there (ffdl data put)",
}
"""What the nodes would find, too, and what helps."""
_MAKE_IT = "correct the container, or make it"
_DOUBTFUL, _NO_ROOM = "not found to be right from here", "there is no room for the data now"
DOUBTS = (_DOUBTFUL, _NO_ROOM)
"""In warnings that are true of the moment."""
_IN_DOUBT = "the nodes ask it before anything is loaded"
_ROOM = "make room there before the job starts, or have jobs_dir on a larger file system"
_WHAT = {Direction.IN: "data", Direction.OUT: "results"}
_CONTAINER = {Direction.IN: "training_data.container", Direction.OUT: "training_results.container"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What is wrong with a store; `kind` None = nothing. `message` is a cause, without what helps."""

    kind: FaultClass | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """Something that is wrong with the store at this place of the manifest, in one direction."""

    store: int
    direction: Direction
    address: StoreAddress
    answer: Answer

    @property
    def sameness(self) -> tuple[object, ...]:
        """Equal for what is one trouble."""
        if self.answer.kind is FaultClass.NETWORK:  # where it is, not which container
            return self.answer.kind, self.address.kind, self.address.endpoint, self.address.region
        return self.answer.kind, self.store, self.answer.message

    @property
    def field(self) -> str:
        """The manifest's field that this is about."""
        kind = self.answer.kind
        if kind in (FaultClass.MISSING, FaultClass.FULL):
            below = _CONTAINER[self.direction]
        elif kind is FaultClass.NETWORK:
            below = "connection.host" if self.address.kind is StoreKind.FSSPEC else "connection.auth_url"
        else:
            below = "type" if kind is FaultClass.LIBRARY else "connection"
        return f"data_stores[{self.store}].{below}"


def findings_of(wrong: Sequence[Told], *, later: bool, runs_here: bool) -> Iterator[Finding]:
    """`later`: what is missing may be made before the job starts. `runs_here`: the nodes run this installation."""
    groups: dict[tuple[object, ...], list[Told]] = {}
    for one in wrong:
        groups.setdefault(one.sameness, []).append(one)
    for group in groups.values():
        yield _finding(group, later=later, runs_here=runs_here)


def _finding(group: Sequence[Told], *, later: bool, runs_here: bool) -> Finding:
    """An error for what the nodes would find, too; else a warning."""
    first = group[0]
    what = " and ".join(dict.fromkeys(_WHAT[one.direction] for one in group))
    kind, said = first.answer.kind, first.answer.message
    assert kind is not None
    is_certain = kind in SURE and not (later and kind is FaultClass.MISSING)
    if is_certain or kind is FaultClass.TASK or (kind is FaultClass.LIBRARY and runs_here):
        code = fault_code(kind, Direction.IN)
        cure = SURE.get(kind, "correct the store") if kind is not FaultClass.LIBRARY else None
        if kind is FaultClass.MISSING and all(one.direction is Direction.OUT for one in group):
            cure = _MAKE_IT
        message = f"the store of {what} cannot be used ({code}): {said}"
        return Finding(Severity.ERROR, message, cure, path=first.field, code=code)
    code = fault_code(kind, first.direction)
    if kind is FaultClass.FULL and first.direction is Direction.IN:
        message = f"{_NO_ROOM} ({code}): {said}"
        return Finding(Severity.WARNING, message, _ROOM, path=first.field, code=code)
    message = f"the store of {what} was {_DOUBTFUL} ({code}): {said}"
    return Finding(Severity.WARNING, message, _IN_DOUBT, path=first.field, code=code)

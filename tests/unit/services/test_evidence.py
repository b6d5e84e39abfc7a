"""What the events of an attempt say of its nodes."""

from __future__ import annotations

from ffdl_batch.domain.events import Event, EventKind, Scalar
from ffdl_batch.services.evidence import nodes_at_fault


def test_nodes_that_said_so_themselves_are_at_fault() -> None:
    def at(number: int, source: str, kind: EventKind, **fields: Scalar) -> Event:
        return Event(number, float(number), source, kind, fields)

    started = [at(1, f"node-{rank}", EventKind.STARTED, host=f"n{rank + 1}.cluster") for rank in range(3)]
    faults = [
        at(2, "node-0", EventKind.FAULT, code="", message="told to end"),
        at(2, "node-1", EventKind.FAULT, code="S108", message="other devices"),
        at(2, "node-2", EventKind.FAULT, code="S302", message="no data"),
    ]
    assert nodes_at_fault([*started, *faults]) == ("n2",)
    assert nodes_at_fault(started) == ()

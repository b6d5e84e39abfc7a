"""What a site has to say about failures of its own kind, and about nodes that fail often."""

from __future__ import annotations

from dataclasses import dataclass

POLICY = "policy "
"""How the source of evidence begins by which a policy is named in an incident."""


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """A regular expression for lines of learners' logs at an abnormal end (Python's; it is searched for in each line).

    `kind` is that of the incident ("" = what it is anyway). `exclude_node`: the job's next attempts keep off the node
    of that learner. `stop_retrying`: no attempt follows. `notify` are addresses that are told of it.
    """

    name: str
    match: str
    kind: str = ""
    exclude_node: bool = False
    stop_retrying: bool = False
    notify: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Whether our jobs keep off nodes that failed often: those with a score of `threshold` and more, for `hours` after
    the last fault, and never more than `percent` of a partition's nodes."""

    exclude_unreliable: bool = False
    threshold: float = 4.0
    hours: float = 24.0
    percent: float = 5.0

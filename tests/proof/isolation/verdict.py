"""The judge: pure, and strict. A refusal counts only beside a control that came through, before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.proof.isolation.values import Hit, Probe


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a probe, and of its controls, those before it first."""

    probe: Probe
    attempt: Hit
    controls: tuple[Hit, ...] = ()

    @property
    def first(self) -> Sequence[Hit]:
        """The controls that were made before."""
        return self.controls[: len(self.probe.controls)]

    @property
    def through(self) -> bool:
        """Whether the attempt came through. One that must has to be answered, where it can be."""
        return self.attempt.through if self.probe.refuse or self.probe.one_way else self.attempt.succeeded

    @property
    def control_failed(self) -> bool:
        """Whether the refusal, if it is one, says nothing."""
        made = len(self.controls) == 2 * len(self.probe.controls)
        return not made or not all(one.through for one in self.controls)

    @property
    def trouble(self) -> str:
        """What is not as it must be; "" where all is."""
        name, place = self.probe.name, self.probe.attempt.place
        if self.control_failed:
            said = "; ".join(str(one) for one in self.controls if not one.through) or "it was not made"
            return f"{name}: the control failed: {said}"
        if self.through and self.probe.refuse:
            return f"{name}: let through ({place}): {self.attempt}"
        if not self.through and not self.probe.refuse:
            return f"{name}: refused ({place}): {self.attempt}"
        return ""


@dataclass(frozen=True, slots=True)
class Round:
    """All probes at one pair of levels: the attacker's and the other job's."""

    level: str
    other: str
    outcomes: Sequence[Outcome]
    mechanism: str = ""
    """By what the nodes are joined, where it is not by VXLAN."""

    @property
    def name(self) -> str:
        """The column's heading."""
        return f"{self.level}/{self.other} {self.mechanism}".rstrip()

    @property
    def troubles(self) -> list[str]:
        """A sentence for each that is not as it must be; none tried is one, too."""
        found = [f"{self.name}: {one.trouble}" for one in self.outcomes if one.trouble]
        return found if self.outcomes else [f"{self.name}: nothing was tried"]

    def said(self) -> list[str]:
        """What each attempt and its controls before it were told."""
        return [
            " | control: ".join([f"{self.name} {one.probe.name}: {one.attempt}", *map(str, one.first)])
            for one in self.outcomes
        ]

    def line(self) -> str:
        """The counts."""
        return f"{self.name:17} {_counts(self.outcomes)}"


def holds(rounds: Sequence[Round]) -> bool:
    """Whether all is as it must be."""
    return bool(rounds) and not any(one.troubles for one in rounds)


def report(rounds: Sequence[Round]) -> str:
    """A table of all probes, the reasons for what is let through, a line for each round, and one over all."""
    names = list(dict.fromkeys(one.probe.name for found in rounds for one in found.outcomes))
    width = max((len(name) for name in names), default=0)
    lines = [f"{'':{width}}  " + "  ".join(found.name for found in rounds)]
    for name in names:
        cells = [_cell(found, name).ljust(len(found.name)) for found in rounds]
        lines.append(f"{name:{width}}  {'  '.join(cells)}".rstrip())
    notes = {
        one.probe.name: one.probe.note
        for found in rounds
        for one in found.outcomes
        if one.probe.note and one.through and not one.trouble
    }
    lines += ["", *(f"let through, and may be: {name}: {note}" for name, note in notes.items()), ""]
    lines += [found.line() for found in rounds]
    everything = [one for found in rounds for one in found.outcomes]
    return "\n".join([*lines, f"{'isolation':17} {_counts(everything)}"])


def _cell(found: Round, name: str) -> str:
    for one in found.outcomes:
        if one.probe.name == name:
            said = "CONTROL" if one.control_failed else "through" if one.through else "refused"
            return said.upper() if one.trouble else said
    return "-"


def _counts(outcomes: Sequence[Outcome]) -> str:
    through = sum(one.through for one in outcomes)
    failed, wrong = sum(one.control_failed for one in outcomes), sum(bool(one.trouble) for one in outcomes)
    return (
        f"attempts {len(outcomes)} refused {len(outcomes) - through} let through {through} "
        f"controls failed {failed} not as it must be {wrong}"
    )

"""The judge: what was planted beside what the report says. Pure, and strict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """One incident of the report."""

    job: str
    kind: str
    nodes: tuple[str, ...]
    evidence: int


@dataclass(frozen=True, slots=True)
class Planted:
    """What was done to one job: the kind that must be told ("" = nothing was, and nothing must), and the node that must
    be named ("" = whichever)."""

    name: str
    kind: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind: how many were planted, how many of these were told so, and how many were told in all."""

    kind: str
    planted: int
    right: int
    told: int

    @property
    def precision(self) -> float | None:
        """Of what was told, the share that was planted; None where nothing was told."""
        return self.right / self.told if self.told else None

    @property
    def recall(self) -> float | None:
        """Of what was planted, the share that was told; None where nothing was planted."""
        return self.right / self.planted if self.planted else None


@dataclass(frozen=True, slots=True)
class Found:
    """`planted` by id of the job."""

    planted: Mapping[str, Planted]
    assigned: Sequence[Told]
    states: Mapping[str, str]
    """How each job ended."""

    def rows(self) -> list[Row]:
        """By kind, those that were planted and those that were told."""
        kinds = {one.kind for one in self.planted.values() if one.kind} | {one.kind for one in self.assigned}
        return [self._row(kind) for kind in sorted(kinds)]

    def _row(self, kind: str) -> Row:
        meant = {job for job, one in self.planted.items() if one.kind == kind}
        told = [one for one in self.assigned if one.kind == kind and one.job in self.planted]
        right = {one.job for one in told if one.job in meant and self._is_right(one)}
        return Row(kind, len(meant), len(right), len(told))

    def _is_right(self, one: Told) -> bool:
        node = self.planted[one.job].node
        return one.evidence > 0 and (not node or one.nodes == (node,))

    @property
    def healthy(self) -> tuple[int, int]:
        """How many healthy jobs there were, and how many of these completed without an incident."""
        jobs = [job for job, one in self.planted.items() if not one.kind]
        told = {one.job for one in self.assigned}
        return len(jobs), sum(job not in told and self.states.get(job) == "COMPLETED" for job in jobs)

    def troubles(self) -> list[str]:
        """A sentence for each incident that is missing, wrong or told without evidence."""
        found = []
        for job, one in self.planted.items():
            told = [incident for incident in self.assigned if incident.job == job]
            kinds = ", ".join(incident.kind for incident in told) or "nothing"
            if one.kind not in [incident.kind for incident in told] and one.kind:
                found.append(f"{one.name} ({job}): planted {one.kind}, told {kinds}; it ended {self.states.get(job)}")
            elif not one.kind and (told or self.states.get(job) != "COMPLETED"):
                found.append(f"{one.name} ({job}): healthy, told {kinds}; it ended {self.states.get(job)}")
            for incident in told:
                if one.kind and incident.kind != one.kind:
                    found.append(f"{one.name} ({job}): told {incident.kind}, which was not planted")
                elif one.kind and not self._is_right(incident):
                    what = f"names {' '.join(incident.nodes) or 'no node'}" if incident.evidence else "has no evidence"
                    found.append(f"{one.name} ({job}): its {incident.kind} {what}")
        return found

    @property
    def holds(self) -> bool:
        """Whether each incident was told as it was planted, and nothing else. Without anything planted nothing does."""
        rows = self.rows()
        jobs, well = self.healthy
        whole = bool(rows) and all(row.planted == row.right == row.told for row in rows)
        return whole and jobs > 0 and jobs == well and not self.troubles()

    def report(self) -> str:
        """A table."""
        lines = [f"{'kind':28} {'planted':>7} {'told so':>7} {'told':>5} {'precision':>9} {'recall':>7}"]
        rows = self.rows()
        for row in rows:
            shares = [f"{share:.2f}" if share is not None else "-" for share in (row.precision, row.recall)]
            lines.append(f"{row.kind:28} {row.planted:7} {row.right:7} {row.told:5} {shares[0]:>9} {shares[1]:>7}")
        jobs, well = self.healthy
        lines.append(f"kinds planted {sum(row.planted > 0 for row in rows)}")
        lines.append(f"healthy jobs {jobs} completed without an incident {well}")
        return "\n".join(lines)

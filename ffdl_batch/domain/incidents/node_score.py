"""Scores of nodes that failed jobs lately, and which of them jobs should keep off. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from ffdl_batch.domain.incidents.incident import Incident, Origin
from ffdl_batch.domain.incidents.kinds import kind_of
from ffdl_batch.domain.incidents.site_settings import NodeRules
from ffdl_batch.host.fast_dataclass import dataclass

DAY_S = 86400.0
HALF_LIFE_S = 14 * DAY_S
"""After so long a fault weighs half."""
LOOK_BACK_S = 10 * HALF_LIFE_S
"""Older faults weigh less than a thousandth, and are ignored."""


@dataclass(frozen=True, slots=True)
class NodeScore:
    """The score of a node."""

    node: str
    score: float
    """Sum of the weights of its faults, each halved every fourteen days."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Kind → number of its incidents."""
    last: float = 0.0
    """Time of the last incident."""
    jobs: int = 0
    excluded_until: float | None = None
    """None = jobs do not keep off it."""


@dataclass(frozen=True, slots=True)
class NodesReport:
    """The scores at a moment, the highest first."""

    at: float
    nodes: tuple[NodeScore, ...] = ()
    threshold: float | None = None
    """Score from which jobs keep off a node; None = the site does not exclude nodes."""


def score_nodes(incidents: Iterable[Incident], now: float) -> list[NodeScore]:
    """Return the nodes at fault, the highest score first. An attempt counts once for a node: by its heaviest
    incident."""
    heaviest: dict[tuple[str, str, int], tuple[float, Incident]] = {}
    kinds: dict[str, Counter[str]] = {}
    last: dict[str, float] = {}
    for one in incidents:
        weight = kind_of(one.kind).weight if one.origin is Origin.NODE else 0.0
        weight *= 2.0 ** (-max(0.0, now - one.at) / HALF_LIFE_S)
        for node in one.nodes if one.origin is Origin.NODE else ():
            key = (node, one.job_id, one.attempt)
            if key not in heaviest or heaviest[key][0] < weight:
                heaviest[key] = (weight, one)
            kinds.setdefault(node, Counter())[one.kind] += 1
            last[node] = max(last.get(node, 0.0), one.at)
    scores: dict[str, float] = {}
    jobs: dict[str, set[str]] = {}
    for (node, job_id, _), (weight, _) in heaviest.items():
        scores[node] = scores.get(node, 0.0) + weight
        jobs.setdefault(node, set()).add(job_id)
    found = [NodeScore(node, score, dict(kinds[node]), last[node], len(jobs[node])) for node, score in scores.items()]
    return sorted(found, key=lambda one: (-one.score, one.node))


def unreliable_nodes(scores: Sequence[NodeScore], rules: NodeRules, now: float) -> list[NodeScore]:
    """Return the nodes that jobs keep off, if the site excludes nodes: above the threshold, for some hours after the
    last fault."""
    if not rules.exclude_unreliable:
        return []
    until_s = rules.hours * 3600.0
    return [one for one in scores if one.score >= rules.threshold and one.last + until_s > now]


def left_out(found: Sequence[NodeScore], partition: Collection[str], rules: NodeRules) -> list[NodeScore]:
    """Return as many of `found`, the worst first, as may be excluded from a partition with these nodes: the site's
    share, rounded up to one node, and never the last node."""
    here = [one for one in found if one.node in partition]
    most = min(math.ceil(len(partition) * rules.percent / 100.0), len(partition) - 1)
    return here[: max(0, most)]

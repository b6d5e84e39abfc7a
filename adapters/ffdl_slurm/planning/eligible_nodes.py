"""Choose the nodes that batch.nodelist, batch.exclude and batch.constraint of a request allow. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce

from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.hostlist import expand
from ffdl_slurm.observing.parsers import count_nodes

_PLAIN = re.compile(r"[\w.:=-]+([&|][\w.:=-]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Group:
    """Equal nodes: `count` of them may be in the allocation, and `named` of these must be."""

    shape: NodeShape
    count: int
    named: int = 0


def narrow(batch: BatchOptions, nodes: Sequence[NodeShape]) -> list[Group]:
    """Return the nodes that the request allows. Conditions that are not certain exclude none; Slurm decides them."""
    named = expand(batch.nodelist) if batch.nodelist else None
    excluded = (expand(batch.exclude) if batch.exclude else None) or frozenset()
    left = []
    for shape in nodes:
        if not may_have(batch.constraint, shape.features):
            continue
        names = expand(shape.name)
        if names is None:
            left.append(Group(shape, count_nodes(shape.name)))
        elif names - excluded:
            left.append(Group(shape, len(names - excluded), len((names - excluded) & (named or frozenset()))))
    return left


def count_named(batch: BatchOptions) -> int:
    """Return how many nodes the request names. The allocation has all of them, and may have more (sbatch(1),
    --nodelist)."""
    return len((expand(batch.nodelist) if batch.nodelist else None) or ())


def node_constraints(batch: BatchOptions) -> list[str]:
    """Return the fields of the request that exclude nodes."""
    return [f"batch.{key}" for key in ("nodelist", "exclude", "constraint") if getattr(batch, key)]


def may_have(constraint: str, features: Sequence[str]) -> bool:
    """Return whether nodes with these features may satisfy the constraint.

    The answer is True if no features are known, and for constraints that are not just names joined by & and |. Slurm
    reads & and | from left to right. Users may expect that & binds closer, so either reading is enough.
    """
    if not constraint or not features or not _PLAIN.fullmatch(constraint):
        return True
    closer = any(all(name in features for name in part.split("&")) for part in constraint.split("|"))
    first, *rest = re.split(r"([&|])", constraint)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return closer or reduce(lambda so_far, pair: _join(so_far, pair[0], pair[1] in features), pairs, first in features)


def _join(left: bool, sign: str, right: bool) -> bool:
    return left and right if sign == "&" else left or right


def names_in(facts: BackendFacts, partition: str) -> frozenset[str]:
    """Return the names of a partition's nodes ("" = the default one's); none if a list of Slurm cannot be read."""
    chosen = partition or next((one.name for one in facts.partitions if one.is_default), "")
    named = [expand(shape.name) for shape in facts.nodes if chosen in shape.partitions]
    return frozenset().union(*(names or () for names in named)) if all(named) else frozenset()

"""Which nodes a partition has, by their names."""

from __future__ import annotations

from ffdl_batch.ports.scheduler import BackendFacts, NodeShape, PartitionShape
from ffdl_slurm.narrowing import names_in

FACTS = BackendFacts(
    nodes=(
        NodeShape("n[1-3]", 8, 1 << 30, partitions=("main", "short")),
        NodeShape("big1", 64, 1 << 40, partitions=("main",)),
    ),
    partitions=(PartitionShape("short"), PartitionShape("main", is_default=True)),
)


def test_names_in_returns_nodes_of_partition_or_default_partition() -> None:
    assert names_in(FACTS, "short") == {"n1", "n2", "n3"}
    assert names_in(FACTS, "") == names_in(FACTS, "main") == {"n1", "n2", "n3", "big1"}


def test_names_in_returns_empty_set_if_partition_or_nodes_are_unknown() -> None:
    assert names_in(FACTS, "elsewhere") == frozenset()
    odd = BackendFacts(nodes=(*FACTS.nodes, NodeShape("n[1-", 1, 1, partitions=("main",))), partitions=FACTS.partitions)
    assert names_in(odd, "main") == frozenset()
    assert names_in(BackendFacts(), "") == frozenset()

"""Parse sinfo's list of nodes and partitions. Pure. As in :mod:`ffdl_slurm.observing.parsers`, a site may print other
text around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ffdl_batch.domain.backend_facts import NodeShape, PartitionShape
from ffdl_batch.domain.quantity import parse_time_limit
from ffdl_slurm.commands import SEPARATOR, SITE_FIELDS
from ffdl_slurm.observing.parsers import Garbled, parse_gpus, parse_other_gres, read_lines, split_row, words_of
from ffdl_slurm.output_text import begin

_MIB = 1024**2


def parse_sinfo(
    text: str,
) -> tuple[tuple[NodeShape, ...], tuple[PartitionShape, ...], tuple[tuple[str, str], ...]]:
    """Read the output of :func:`ffdl_slurm.commands.sinfo_argv`. Return nodes, partitions, and the rows that cannot be
    read, with the reasons.

    Lines without a separator, which a site prints around the rows, are ignored. Raises Garbled if no row can be read.
    """
    rows = "".join(line for line in text.splitlines(keepends=True) if SEPARATOR in line)
    good: list[list[str]] = []
    odd: list[tuple[str, str]] = []
    for line in read_lines(rows or text, len(SITE_FIELDS), "sinfo", ("PARTITION", "TIMELIMIT")):
        try:
            row = split_row(line, len(SITE_FIELDS), "sinfo")
            _site([row])
        except Garbled as error:
            odd.append((begin(line), str(error)))
        else:
            good.append(row)
    if odd and not good:
        raise Garbled(odd[0][1])
    return (*_site(good), tuple(odd))


def _site(rows: Sequence[Sequence[str]]) -> tuple[tuple[NodeShape, ...], tuple[PartitionShape, ...]]:
    partitions: dict[str, PartitionShape] = {}
    nodes: dict[str, NodeShape] = {}
    for partition, limit, cpus, memory, gres, features, names in (map(str.strip, row) for row in rows):
        name = partition.rstrip("*")
        partitions[name] = PartitionShape(name, partition.endswith("*"), _limit(limit))
        if not names:
            continue
        known = nodes[names].partitions if names in nodes else ()
        nodes[names] = NodeShape(
            names,
            _amount(cpus, names),
            _amount(memory, names) * _MIB,
            parse_gpus(gres),
            (*known, name),
            tuple(words_of(features)),
            parse_other_gres(gres),
        )
    return tuple(nodes.values()), tuple(partitions.values())


def _amount(text: str, names: str) -> int:
    """Parse a number. A trailing + means that the group has bigger nodes, too. Raises Garbled."""
    plain = text.removesuffix("+")
    if not (plain.isascii() and plain.isdigit()):
        raise Garbled(f"sinfo printed {begin(text)!r} instead of a number for {begin(names)}")
    return int(plain)


def _limit(text: str) -> int | None:
    try:
        return parse_time_limit(text)
    except ValueError:
        return None

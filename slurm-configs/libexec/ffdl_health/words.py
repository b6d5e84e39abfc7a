"""Which lines of a log are signs of a sick node, and of what. Pure.

Few patterns, each one a sentence that a driver or the kernel prints. What matches none is not told.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Pattern

from .findings import Finding
from .xids import UNKNOWN, XIDS

LINE_MOST = 2000
"""So much of a line is looked at: patterns never see more."""
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): ?([0-9]+)")


class _Rule(NamedTuple):
    kind: str
    pattern: Pattern[str]
    badly: bool = False


def _rule(kind: str, pattern: str, *, badly: bool = False) -> _Rule:
    return _Rule(kind, re.compile(pattern), badly)


KERNEL = (
    # A correctable error of memory is a sign; after an uncorrected one the node is not fit.
    _rule("memory", r"EDAC (?P<device>\S+?): ?\d+ UE ", badly=True),
    _rule("memory", r"\[Hardware Error\]: (?:Uncorrected|event severity: fatal)", badly=True),
    _rule("memory", r"Uncorrected hardware memory error", badly=True),
    _rule("memory", r"EDAC (?P<device>\S+?): ?\d+ CE "),
    _rule("memory", r"mce: (?:\[Hardware Error\]|Uncorrected)|Memory failure: 0x"),
    _rule("disk", r"EXT4-fs error \(device (?P<device>[^)]+)\)"),
    _rule("disk", r"EXT4-fs \((?P<device>[^)]+)\): Remounting filesystem read-only", badly=True),
    _rule("disk", r"XFS \((?P<device>[^)]+)\): .*(?:[Cc]orrupt|[Ii]nternal error|I/O error|[Ss]hutdown)", badly=True),
    _rule("disk", r"BTRFS (?:error|critical) \(device (?P<device>[^):]+)"),
    _rule("nfs", r"nfs: server (?P<device>\S+) not responding"),
    _rule("nfs", r"Lustre(?:Error)?: .*[Cc]onnection to (?P<device>\S+) .*was lost"),
    _rule("io", r"(?:Buffer )?I/O error,? (?:on )?dev(?:ice)? (?P<device>[\w-]+)"),
    _rule("io", r"nvme (?P<device>nvme\d+): (?:I/O .* timeout|controller is down)"),
    _rule("io", r"(?P<device>ata[\d.]+): (?:exception Emask|failed command)"),
    # The kernel says it in other words where a job reached its own limit.
    _rule("out_of_memory", r"Out of memory: Kill(?:ed)? process \d+ \((?P<device>[^)]*)\)"),
    _rule("network", r"mlx[45]_core \S+?(?: (?P<device>[\w.]+))?: Link down"),
    _rule("network", r"mlx[45]_core (?P<device>\S+?): .*(?:health compromised|[Ff]atal error)", badly=True),
    _rule("network", r"\b(?P<device>(?:en|eth|ib|hsn|bond)[\w.]*): (?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|not ready)"),
    _rule("thermal", r"(?P<device>CPU\d+): (?:Core|Package) temperature (?:is )?above threshold"),
    _rule("thermal", r"thermal \S+: critical temperature reached|NVRM: .*[Tt]hermal (?:slowdown|shutdown)"),
    _rule("gpu", r"NVRM: (?:GPU (?P<device>\S+): )?.*(?:RmInitAdapter failed|has fallen off the bus)", badly=True),
)  # fmt: skip
"""The first one that matches decides."""
SLURMD = (
    _rule("slurmd", r"error: (?:Unable to register|slurmd_req: |.*Kill task failed|.*cgroup.*(?:unable|failed))"),
    _rule("slurmd", r"error: (?:Munge|munge|auth_munge|authentication).*|error: .*[Mm]unge (?:decode|encode) failed"),
    _rule(
        "slurmd", r"error: .*(?:Node configuration differs|can't stat gres\.conf file|gres/gpu: .*(?:count|reduced))"
    ),
    _rule("slurmd", r"fatal: "),
)


def of_kernel(at: float, text: str) -> Finding | None:
    """What a line of the kernel's is a sign of; None: of nothing that is known here."""
    text = text[:LINE_MOST]
    found = _XID.search(text)
    if found is None:
        return _first(KERNEL, at, text)
    meaning = XIDS.get(int(found.group(2)), UNKNOWN)
    return Finding(at, meaning.kind, found.group(1), f"{text} [{meaning.words}]", meaning.badly)


def of_slurmd(at: float, text: str) -> Finding | None:
    """The same for a line of slurmd's log."""
    return _first(SLURMD, at, text[:LINE_MOST])


def _first(rules: tuple[_Rule, ...], at: float, text: str) -> Finding | None:
    for rule in rules:
        found = rule.pattern.search(text)
        if found is not None:
            device = found.groupdict().get("device") or ""
            return Finding(at, rule.kind, device, text, rule.badly)
    return None

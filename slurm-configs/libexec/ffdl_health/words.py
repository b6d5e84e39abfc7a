"""Recognises log lines that are signs of a sick node. Pure.

Each pattern matches a message of a driver or of the kernel from the first character of the line. Lines that match no
pattern are not reported.

Users can make the kernel print text of theirs: a mount option, which the kernel quotes, or the name of a program, which
has at most 15 characters and is followed by [ at the beginning of a line. So a pattern that allows text before a [
requires more than 15 characters there.

In slurmd's log, users choose text of the lines of their steps, and paths in others. So a pattern has the whole fixed
beginning of a message, and no line of a step matches.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Pattern

from .findings import Finding
from .xids import UNKNOWN, XIDS

LINE_MOST = 2000
"""The maximum length of a line. Patterns never see more."""
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)\): ?([0-9]{1,5})\b"
)
_QUOTE = re.compile("['\"`]")
_QUOTED_BY_KERNEL = re.compile(r"""'<unknown>'|"[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[\w+\])?\"""")
"""Quoted text that does not come from a user: a process unknown to NVIDIA's driver, an address in kernel code."""
_SLURMD = r"(?:(?:[\w.-]+ )?slurmd(?:\[\d+\])?: )?(?:slurmd(?:-[\w.-]+)?: )?"
"""Text that may precede the word error: the host that syslog adds, and slurmd's name. Never a step, as [49.batch]."""


_AMD = r"amdgpu (?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:amdgpu: )?"
"""The beginning of a message of amdgpu about a GPU. Newer drivers repeat their name."""


class _Rule(NamedTuple):
    kind: str
    pattern: Pattern[str]
    badly: bool = False


def _rule(kind: str, pattern: str, *, badly: bool = False) -> _Rule:
    return _Rule(kind, re.compile(pattern), badly)


KERNEL = (
    # A corrected memory error is only a sign. After an uncorrected one the node is unfit for jobs.
    _rule("memory", r"EDAC (?P<device>MC\d+): \d+ UE (?:[^\[]* )?on ", badly=True),
    _rule("memory", r"(?:\{\d+\})?\[Hardware Error\]: (?:Uncorrected|event severity: fatal)", badly=True),
    _rule("memory", r"(?:mce: )?Uncorrected hardware memory error", badly=True),
    _rule("memory", r"EDAC (?P<device>MC\d+): \d+ CE (?:[^\[]* )?on "),
    _rule("memory", r"mce: (?:\[Hardware Error\]|Uncorrected)|Memory failure: 0x"),
    _rule("disk", r"EXT4-fs error \(device (?P<device>[^)]+)\)"),
    _rule("disk", r"EXT4-fs \((?P<device>[^)]+)\): Remounting filesystem read-only", badly=True),
    _rule("disk", r"XFS \((?P<device>[^)]+)\): [^\[]*(?:[Cc]orrupt|[Ii]nternal error|I/O error|[Ss]hutdown)",
          badly=True),
    _rule("disk", r"BTRFS (?:error|critical) \(device (?P<device>[^):]+)"),
    _rule("nfs", r"nfs: server (?P<device>\S+) not responding"),
    _rule("nfs", r"Lustre(?:Error)?: [^\[]*[Cc]onnection to (?P<device>\S+) [^\[]*was lost"),
    _rule("io", r"(?:\w+_re(?:quest|q_error): )?(?:Buffer )?I/O error(?:,| on) dev(?:ice)? (?P<device>[\w-]+)"),
    _rule("io", r"nvme (?P<device>nvme\d+): (?:I/O [^\[]* timeout|controller is down)"),
    _rule("io", r"(?P<device>ata[\d.]+): (?:exception Emask|failed command)"),
    # The kernel uses another message if a job reaches its own limit.
    _rule("out_of_memory", r"Out of memory: Kill(?:ed)? process \d+ \((?P<device>[^)]*)\)"),
    _rule("network", r"mlx[45]_core \S+?(?: (?P<device>[\w.]+))?: Link down"),
    _rule("network", r"mlx[45]_core (?P<device>[0-9a-f]{4}:[0-9a-f:.]{7}): "
                     r"[^\[]*(?:health compromised|[Ff]atal error)", badly=True),
    _rule("network", r"(?:[\w-]+ [0-9a-f:.]+ |IPv6: ADDRCONF\(\w+\): )?(?P<device>(?:en|eth|ib|hsn|bond)[\w.]*): "
                     r"(?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|not ready)(?!\[)"),
    _rule("thermal", r"(?:mce: )?(?P<device>CPU\d+): (?:Core|Package) temperature (?:is )?above threshold"),
    _rule("thermal", r"thermal \S+: (?:\S+: )?critical temperature reached"),
    _rule("thermal", r"NVRM: (?:GPU (?P<device>[\w:.]+): )?[\w ]*[Tt]hermal (?:slowdown|shutdown)"),
    _rule("gpu", r"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<device>[0-9A-Fa-f:.]+?):? )?"
                 r"(?:RmInitAdapter failed|(?:GPU )?has fallen off the bus)", badly=True),
    # No second source confirms these, so they drain no node.
    _rule("ecc", _AMD + r"(?:socket: \d+, die: \d+,? )?[1-9]\d* (?:new )?uncorrectable hardware errors detected in "),
    _rule("gpu", _AMD + r"(?:Fatal error during GPU init|GPU reset\(\d+\) failed|device lost from bus!)"),
)  # fmt: skip
"""The first match decides. A `badly` finding drains the node if a second source confirms it (confirmation.py)."""
_SLURMD_ERRORS = (
    "Unable to register: ",
    "Munge (?:encode|decode) failed: ",
    "munge_ctx_set failure",
    "authentication: ",
    r"Node configuration differs from hardware: CPUs=\d",
    "Waiting for gres\\.conf file ",
    "Unable to initialize cgroup plugin",
    "cannot (?:find cgroup plugin|create cgroup context) for cgroup/v[12]",
    r"unable to mount \w+ cgroup namespace: ",
    "slurmd initialization failed",
)
"""The beginnings of slurmd's messages about its node in Slurm's source. No text of a user comes before these words."""
SLURMD = (_rule("slurmd", f"{_SLURMD}(?:fatal: |error: (?:{'|'.join(_SLURMD_ERRORS)}))"),)


def of_kernel(at: float, text: str) -> Finding | None:
    """Return the fault that a line of the kernel log reports; None if it reports none or quotes text of a user."""
    text = text[:LINE_MOST]
    if _QUOTE.search(_QUOTED_BY_KERNEL.sub("", text)):
        return None
    found = _XID.match(text)
    if found is None:
        return _first(KERNEL, at, text)
    meaning = XIDS.get(int(found.group(2)), UNKNOWN)
    return Finding(at, meaning.kind, found.group(1), f"{text} [{meaning.words}]", meaning.badly)


def of_slurmd(at: float, text: str) -> Finding | None:
    """Return the fault that a line of slurmd's log reports; None if it reports none.

    Lines of a step (`[49.batch] error: ...`) are no faults of the node: they quote the paths and programs of its user.
    """
    return _first(SLURMD, at, text[:LINE_MOST])


def _first(rules: tuple[_Rule, ...], at: float, text: str) -> Finding | None:
    for rule in rules:
        found = rule.pattern.match(text)
        if found is not None:
            device = found.groupdict().get("device") or ""
            return Finding(at, rule.kind, device, text, rule.badly)
    return None

"""Takes a sick node out of service, where the site lets us, and puts it back. Of others' drains it keeps away.

A drain of ours has a reason that begins with `ffdl:`. A node that somebody else drained keeps its reason; one whose
reason somebody changed is theirs from then on.
"""

from __future__ import annotations

import os
import re
from typing import Mapping, Sequence

from . import bounded
from .settings import Settings

MARK = "ffdl:"
TIMEOUT_S = 8.0
_STATE = re.compile(r"(?:^|\s)State=(\S+)")
_REASON = re.compile(r"(?:^|\s)Reason=(.*?)(?: \[\S+@\S+\])?\s*$")
_OUT = ("DRAIN", "FAIL", "DOWN", "MAINT")


def node_name(environ: Mapping[str, str]) -> str:
    """What Slurm calls this node: slurmd says it to the program in some releases; else the short host name."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def act(site: Settings, node: str, bad: Sequence[str]) -> str:
    """Drain the node where something is `bad`, else resume what was drained so; both as the site allows. What was done,
    in a sentence ("" = nothing)."""
    if not site.drain or not (bad or site.resume):
        return ""
    told = _scontrol(site, "-o", "show", "node", node)
    state, reason = _matched(_STATE, told), _matched(_REASON, told)
    if not state:
        return f"slurmctld does not tell of {node}: {' '.join(told.split())[:200]}"
    if bad and not any(word in state for word in _OUT):
        why = f"{MARK} {bad[0]}"
        said = _scontrol(site, "update", f"nodename={node}", "state=drain", f"reason={why}")
        return f"{node} is drained: {why}" if not said.strip() else f"{node} cannot be drained: {said.strip()[:200]}"
    if not bad and "DRAIN" in state and reason.startswith(MARK):
        said = _scontrol(site, "update", f"nodename={node}", "state=resume")
        return f"{node} is resumed" if not said.strip() else f"{node} cannot be resumed: {said.strip()[:200]}"
    return ""


def _scontrol(site: Settings, *words: str) -> str:
    conf = [f"SLURM_CONF={site.slurm_conf}"] if site.slurm_conf.is_file() else []
    try:
        answer = bounded.ask(["env", *conf, "scontrol", *words], TIMEOUT_S)
    except OSError as error:
        return f"scontrol cannot be started: {error}"
    return answer.text if answer.status is not None else f"scontrol did not end within {TIMEOUT_S:g} s"


def _matched(pattern: re.Pattern[str], told: str) -> str:
    found = pattern.search(told.strip())
    return found.group(1) if found else ""

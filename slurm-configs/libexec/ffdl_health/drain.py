"""Drains a sick node if the site allows it, and resumes it. It never changes a drain with another reason.

The reason of each drain that this program sets begins with `ffdl:`. A node that an administrator drained keeps its
reason. If an administrator changes the reason of a node, this program no longer resumes the node. The number of drains
of the whole site within an hour is limited: a fault that many nodes report at once is rarely a fault of the nodes, and
jobs need nodes.
"""

from __future__ import annotations

import math
import os
import re
import time
from typing import Mapping, Sequence

from . import bounded
from .settings import Settings

MARK = "ffdl:"
TIMEOUT_S = 8.0
_HOUR_S = 3600.0
_STATE = re.compile(r"(?:^|\s)State=(\S+)")
_REASON = re.compile(r"(?:^|\s)Reason=(.*?)(?: \[\S+@\S+\])?\s*$")
_OUT = ("DRAIN", "FAIL", "DOWN", "MAINT")


def node_name(environ: Mapping[str, str]) -> str:
    """Return Slurm's name of this node: the variable that some releases of slurmd set, else the short host name."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def act(site: Settings, node: str, bad: Sequence[str]) -> str:
    """Drain the node if there are `bad` findings, else resume it if this program drained it.

    Both happen only if the site allows it. Return a sentence about what was done; "" if nothing was.
    """
    if not site.drain or not (bad or site.resume):
        return ""
    shown = _scontrol(site, "-o", "show", "node", node)
    state, reason = _matched(_STATE, shown), _matched(_REASON, shown)
    if not state:
        return f"slurmctld has no record of {node}: {' '.join(shown.split())[:200]}"
    if bad and not any(word in state for word in _OUT):
        return _drain(site, node, f"{MARK} {bad[0]}")
    if not bad and "DRAIN" in state and reason.startswith(MARK):
        said = _resume(site, node)
        return f"{node} is resumed" if not said else f"{node} cannot be resumed: {said[:200]}"
    return ""


def _drain(site: Settings, node: str, why: str) -> str:
    """Drain the node unless the site's limit of drains is reached. Return what was done.

    Nodes that drain at the same moment do not see each other's drain before. So each node counts again afterwards. If
    the limit is passed, the last nodes resume, so that never more nodes than allowed stay drained.
    """
    refused = _limit(site, node)
    if not refused:
        said = _scontrol(site, "update", f"nodename={node}", "state=drain", f"reason={why}").strip()
        if said:
            return f"{node} cannot be drained: {said[:200]}"
        refused = _limit(site, node)
        if not refused:
            return f"{node} is drained: {why}"
        _resume(site, node)
    return f"{node} is not drained ({why}): {refused}"


def _limit(site: Settings, node: str) -> str:
    """Return why the node must not be, or stay, drained; "" if it may."""
    try:
        drained = _drained(site)
    except OSError as error:
        return str(error)
    own, hour_ago = drained.pop(node, math.inf), time.time() - _HOUR_S
    count = sum(hour_ago < at <= own for at in drained.values())
    if count < site.drains_per_hour:
        return ""
    return f"{count} nodes of this site were drained within an hour, as many as HEALTH_DRAINS_PER_HOUR allows"


def _drained(site: Settings) -> dict[str, float]:
    """Return the nodes of the site that this program drained, with the time of the drain (epoch). Raises OSError.

    sinfo(1) prints a line for each node and partition, with times in the format of slurm_make_time_str, because
    SLURM_TIME_FORMAT is not set.
    """
    argv = ["sinfo", "--all", "-h", "-N", "-t", "drain", "-o", "%N %H %E"]
    answer = bounded.ask(_in_site(site, argv), TIMEOUT_S)
    if answer.status != 0:
        raise OSError(f"sinfo cannot list the drained nodes: {' '.join(answer.text.split())[:200]}")
    rows = (line.split(None, 2) for line in answer.text.split("\n"))
    return {row[0]: _seconds(row[1]) for row in rows if len(row) == 3 and row[2].startswith(MARK)}


def _seconds(text: str) -> float:
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return time.time()


def _resume(site: Settings, node: str) -> str:
    """Resume the node. Return the error that scontrol prints; "" if it succeeds."""
    return _scontrol(site, "update", f"nodename={node}", "state=resume").strip()


def _scontrol(site: Settings, *words: str) -> str:
    try:
        answer = bounded.ask(_in_site(site, ["scontrol", *words]), TIMEOUT_S)
    except OSError as error:
        return f"scontrol cannot be started: {error}"
    return answer.text if answer.status is not None else f"scontrol did not end within {TIMEOUT_S:g} s"


def _in_site(site: Settings, argv: Sequence[str]) -> Sequence[str]:
    return ["env", f"SLURM_CONF={site.slurm_conf}", *argv] if site.slurm_conf.is_file() else argv


def _matched(pattern: re.Pattern[str], shown: str) -> str:
    found = pattern.search(shown.strip())
    return found.group(1) if found else ""

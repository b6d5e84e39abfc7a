"""Checks the site's values for the health of nodes, in render.py and again in the program. Pure."""

from __future__ import annotations

import re
from typing import Mapping

from ffdl_network.values import Rule, Wrong, whole_number, wrong_alone

_PLACES = re.compile(r"/[^\s:\"\\]*(:/[^\s:\"\\]*)*")
_YES = Rule(lambda text: text in ("yes", "no"), "yes or no")
_PLACES_RULE = Rule(
    lambda text: not text or _PLACES.fullmatch(text) is not None, "absolute paths with colons between, or nothing"
)
RULES: Mapping[str, Rule] = {
    "HEALTH_KERNEL_LOG": Rule(
        lambda text: text in ("kmsg", "journal", "none") or (_PLACES.fullmatch(text) is not None and ":" not in text),
        "kmsg, journal, none, or the absolute path of a file",
    ),
    "HEALTH_SLURMD_LOG": _PLACES_RULE,
    "HEALTH_GPUS": _YES,
    "HEALTH_CLOCK_S": whole_number(0, 86_400),
    "HEALTH_MOUNTS": Rule(
        lambda text: text in ("network", "none") or _PLACES.fullmatch(text) is not None,
        "network, none, or absolute paths with colons between",
    ),
    "HEALTH_DISKS": _PLACES_RULE,
    "HEALTH_FULL_PERCENT": whole_number(1, 100),
    "HEALTH_DRAIN": _YES,
    "HEALTH_DRAINS_PER_HOUR": whole_number(1, 10_000),
    "HEALTH_RESUME": _YES,
    "HEALTH_INTERVAL_S": whole_number(5, 65_534),
    "HEALTH_NODE_STATE": Rule(
        lambda text: re.fullmatch(r"[A-Z_]+(,[A-Z_]+)*", text) is not None, "states as slurm.conf has them, e.g. ANY"
    ),
}
"""The rule of every value that the program, slurm.conf and the timer use."""


def wrong_in(values: Mapping[str, str]) -> list[Wrong]:
    """Return all faults: first those of single values, then contradictions between valid values."""
    wrong = wrong_alone(RULES, values)
    if not wrong and values["HEALTH_RESUME"] == "yes" and values["HEALTH_DRAIN"] == "no":
        wrong.append(
            Wrong("HEALTH_RESUME", "HEALTH_RESUME is 'yes': it resumes what HEALTH_DRAIN drained; set that, too")
        )
    return wrong

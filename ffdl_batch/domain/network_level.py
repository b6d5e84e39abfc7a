"""The levels of network isolation. Runs on Python 3.9.

A module of its own so that reading the configuration stays cheap.
"""

from __future__ import annotations

from enum import Enum
from typing import Tuple


def network_text(level: str, mechanism: str) -> str:
    """What a job's row says of the network that its learners were found in; before that it says the level alone."""
    return f"{level} ({mechanism})"


def split_network(text: str) -> Tuple[str, str]:
    """Level and mechanism; "" = it was not looked at (yet)."""
    level, _, rest = text.partition(" (")
    return level, rest.removesuffix(")")


class NetworkLevel(str, Enum):
    """The ladder of network isolation, tightest first; AUTO is the tightest that works and can be proved."""

    AUTO = "auto"
    NONE = "none"
    JOB = "job"
    EGRESS = "egress"
    HOST = "host"

    def __str__(self) -> str:
        return self.value


ONLY_HOST = "only network level host is offered"
"""So begins what a backend says of a site whose networks isolate nobody, and why that is so may change."""
OVERLAYS = frozenset({NetworkLevel.JOB, NetworkLevel.EGRESS})
"""Levels with a network of the job's own, which the site makes for it on each node: each learner has an address."""

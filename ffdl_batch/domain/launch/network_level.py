"""The levels of network isolation. Runs on Python 3.9.

A module of its own so that reading the configuration stays cheap.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Sequence, Tuple


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

_UNREACHABLE = re.compile(
    r"name or service not known|failure in name resolution|no address associated with hostname|name does not resolve"
    r"|(?:could not|couldn't|unable to|failed to) resolve|NameResolutionError|UnknownHostException"
    r"|getaddrinfo (?:failed|ENOTFOUND|EAI_AGAIN)|failed to lookup address|no such host\b|server misbehaving"
    r"|network is unreachable|no route to host",
    re.IGNORECASE,
)
"""Errors of resolvers and connections (gai_strerror(3) of glibc and musl, errno(3), curl, Python, Go, Java, Node)."""


def is_unreachable(text: str) -> bool:
    """Return whether a program complains in `text` that a name cannot be resolved, or that no network leads there."""
    return _UNREACHABLE.search(text) is not None


def explain_unreachable(level: str, lines: Sequence[str]) -> str:
    """Return what the network level has to do with the failure of a learner whose log ends with `lines`, and the option
    that changes it; "" if nothing."""
    reached = {
        NetworkLevel.NONE: "no other host",
        NetworkLevel.JOB: "only the other learners of the job",
        NetworkLevel.EGRESS: "only the destinations in batch.network.allow",
    }
    if level not in reached or not any(is_unreachable(line) for line in lines):
        return ""
    return (
        f"at network level {level} it reaches {reached[NetworkLevel(level)]}: if it needs another one, submit with "
        "--network egress:HOST:PORT or --network host (batch.network)"
    )

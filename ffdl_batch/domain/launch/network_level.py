"""The levels of network isolation. Runs on Python 3.9.

A module of its own so that reading the configuration stays cheap.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Optional, Sequence, Tuple


def network_text(level: str, mechanism: str) -> str:
    """Return the text in a job's row about the network in which its learners were found."""
    return f"{level} ({mechanism})"


def split_network(text: str) -> Tuple[str, str]:
    """Return level and mechanism of such a text; mechanism "" = not checked yet."""
    level, _, rest = text.partition(" (")
    return level, rest.removesuffix(")")


class NetworkLevel(str, Enum):
    """The levels of network isolation, tightest first. AUTO is the tightest that works and can be proved."""

    AUTO = "auto"
    NONE = "none"
    JOB = "job"
    EGRESS = "egress"
    HOST = "host"

    def __str__(self) -> str:
        return self.value


ONLY_HOST = "only network level host is offered"
"""Beginning of a backend's warning about a site without isolated networks; the reason for that may change."""
OVERLAYS = frozenset({NetworkLevel.JOB, NetworkLevel.EGRESS})
"""Levels with a network of the job's own, which the site makes on each node: each learner has an address."""

_UNREACHABLE = (
    r"name or service not known|failure in name resolution|no address associated with hostname|name does not resolve"
    r"|(?:could not|couldn't|unable to|failed to) resolve|NameResolutionError|UnknownHostException"
    r"|getaddrinfo (?:failed|ENOTFOUND|EAI_AGAIN)|failed to lookup address|no such host\b|server misbehaving"
    r"|network is unreachable|no route to host|bad hostname\b|\(from versions: none\)"
)
"""Errors of resolvers and connections (gai_strerror(3) of glibc and musl, errno(3), curl, Python, Go, Java, Node, Perl,
pip)."""
_SILENT = {2: ("getent",), 4: ("wget",), 6: ("curl",), 7: ("curl",)}
"""Exit code -> programs that end with it if a name cannot be resolved or a host not be reached (wget -q, curl -s)."""


def is_unreachable(text: str) -> bool:
    """Return whether a program reports in `text` that a name cannot be resolved or a network is unreachable."""
    return re.search(_UNREACHABLE, text, re.IGNORECASE) is not None


def explain_unreachable(
    level: str, offered: Sequence[str], lines: Sequence[str], command: str = "", exit_code: Optional[int] = None
) -> str:
    """Return what the network level has to do with the failure of a learner, and the options that change it; "" if
    nothing. `lines` are the end of its log; `offered` are the levels with access to other hosts that it could have."""
    reached = {
        NetworkLevel.NONE: "it cannot reach other hosts",
        NetworkLevel.JOB: "it can reach only the other learners of the job",
        NetworkLevel.EGRESS: "it can reach only the destinations in batch.network.allow",
    }
    if level not in reached:
        return ""
    if not any(is_unreachable(line) for line in lines) and not _failed_silently(command, exit_code):
        return ""
    known = {NetworkLevel.EGRESS: "--network egress:HOST:PORT", NetworkLevel.HOST: "--network host"}
    options = " or ".join(option for one, option in known.items() if one in offered)
    cure = f"if it needs more, submit with {options} (batch.network)" if options else "this site offers no wider level"
    return f"at network level {level} {reached[NetworkLevel(level)]}; {cure}"


def _failed_silently(command: str, exit_code: Optional[int]) -> bool:
    """Return whether the command has a program that reports an unreachable host by this exit code alone."""
    return any(re.search(rf"\b{name}\b", command) is not None for name in _SILENT.get(exit_code or 0, ()))

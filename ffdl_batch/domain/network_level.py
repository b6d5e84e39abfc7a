"""The levels of network isolation; a module of its own so that reading the configuration stays cheap."""

from __future__ import annotations

from enum import StrEnum


def network_text(level: str, mechanism: str) -> str:
    """What a job's row says of the network that its learners were found in; before that it says the level alone."""
    return f"{level} ({mechanism})"


def split_network(text: str) -> tuple[str, str]:
    """Level and mechanism; "" = it was not looked at (yet)."""
    level, _, rest = text.partition(" (")
    return level, rest.removesuffix(")")


class NetworkLevel(StrEnum):
    """The ladder of network isolation, tightest first; AUTO is the tightest that works and can be proved."""

    AUTO = "auto"
    NONE = "none"
    JOB = "job"
    EGRESS = "egress"
    HOST = "host"

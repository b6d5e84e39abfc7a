"""The levels of network isolation; a module of its own so that reading the configuration stays cheap."""

from __future__ import annotations

from enum import StrEnum


class NetworkLevel(StrEnum):
    """The ladder of network isolation, tightest first; AUTO is the tightest that works and can be proved."""

    AUTO = "auto"
    NONE = "none"
    JOB = "job"
    EGRESS = "egress"
    HOST = "host"

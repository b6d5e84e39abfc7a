"""Reads the network request of a job: the mark at the beginning of its comment, up to the first space. Pure.

    <mark>job/<most learners on a node>
    <mark>egress/<most learners on a node>/<host>:<port>[,<host>:<port>...]

Any other mark is refused, so that no job gets another network than it requested. The text comes from a user.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .commands import Trouble

LEARNERS_MOST = 62
DESTINATIONS_MOST = 16
_REQUEST = re.compile(r"job/([1-9][0-9]?)|egress/([1-9][0-9]?)/(.+)")
_DESTINATION = re.compile(r"([A-Za-z0-9.-]{1,253}):([1-9][0-9]{0,4})")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


class Destination(NamedTuple):
    """A host name or IPv4 address, and a port."""

    host: str
    port: int


class NetworkRequest(NamedTuple):
    """The maximum number of learners on a node, and their destinations. Without destinations, the level is `job`."""

    learners: int
    destinations: tuple[Destination, ...]


def read(comment: str, mark: str) -> NetworkRequest | None:
    """Return the request; None if there is none. Raises Trouble if the mark cannot be read."""
    if not comment.startswith(mark):
        return None
    word = comment[len(mark) :].partition(" ")[0]
    if not word:
        return None
    found = _REQUEST.fullmatch(word)
    learners = int(found.group(1) or found.group(2)) if found else 0
    if found is None or learners > LEARNERS_MOST:
        raise _unreadable(mark, word)
    return NetworkRequest(learners, _destinations(mark, word, found.group(3)) if found.group(3) else ())


def _destinations(mark: str, word: str, listed: str) -> tuple[Destination, ...]:
    parts = [_DESTINATION.fullmatch(text) for text in listed.split(",")]
    found = tuple(Destination(part.group(1), int(part.group(2))) for part in parts if part)
    named = all(_LABEL.fullmatch(label) for to in found for label in to.host.rstrip(".").split("."))
    if not named or not all(parts) or len(found) > DESTINATIONS_MOST or any(to.port > 65535 for to in found):
        raise _unreadable(mark, word)
    return found


def _unreadable(mark: str, word: str) -> Trouble:
    return Trouble(
        f"unreadable mark {(mark + word)[:100]!r} in the job's comment: it is {mark}job/<1-{LEARNERS_MOST}> or "
        f"{mark}egress/<1-{LEARNERS_MOST}>/<host>:<port>[,...] with at most {DESTINATIONS_MOST} destinations; are the "
        "platform and the programs of slurm-configs of the same release?"
    )

"""Stores that nodes mount instead of bringing what is in them: who wants it, and how such a mount is known. Runs on
Python 3.9."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ffdl_batch.domain.data.store_kinds import KINDS, StoreAddress, StoreKind

SFTP = ("sftp", "ssh")
"""Protocols of fsspec's that are one and the same."""


class Mounting(str, Enum):
    """Whether the stores of types that FfDL mounts are mounted."""

    AUTO = "auto"
    """Where the node can; else their data are brought, to the same paths."""
    ALWAYS = "always"
    """A node that cannot ends the attempt."""
    NEVER = "never"
    """Their data are brought."""


@dataclass(frozen=True)
class Brought:
    """A fetch, by its place, that no node could mount, and why."""

    transfer: int
    why: str


@dataclass(frozen=True)
class Mounts:
    """What nodes mount: the places of `transfers` among the launch file's fetches, read-only.

    `must`: where a node cannot mount, the attempt ends; else data are brought.
    `cache_bytes` are what a node keeps of what was read. `brought`: what would be mounted were it of another kind.
    """

    transfers: tuple[int, ...]
    must: bool = False
    cache_bytes: int = 0
    brought: tuple[Brought, ...] = ()


def why_brought(store: StoreAddress) -> str:
    """Why nodes never mount a store of this kind, "" = they may."""
    if KINDS[store.kind].has_buckets:
        return ""
    if store.kind is StoreKind.FSSPEC:
        protocol = store.options.get("protocol", "")
        return "" if protocol in SFTP else f"stores of the protocol {protocol} are not mounted"
    return f"stores of the kind {store.kind.value} are not mounted"


SIGN = "ffdl-batch"


@dataclass(frozen=True)
class MountOwner:
    """Who made a mount, as its source says: the scheduler's number of the job ("0" where there is none), and the
    process that holds it, by its number and start time."""

    job: str
    pid: int
    start_ticks: int

    def source(self) -> str:
        """The mount's source in the mount table. The site's epilog knows it, too."""
        return f"{SIGN}:{self.job}:{self.pid}:{self.start_ticks}"


def read_source(text: str) -> MountOwner | None:
    """Who made the mount with this source; None where it is none of ours."""
    parts = text.split(":")
    if len(parts) != 4 or parts[0] != SIGN or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return MountOwner(parts[1], int(parts[2]), int(parts[3]))

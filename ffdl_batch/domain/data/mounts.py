"""Stores that nodes mount instead of copying their data: the settings, and how a mount is recognised. Runs on Python
3.9."""

from __future__ import annotations

from enum import Enum

from ffdl_batch.domain.data.store_kinds import KINDS, StoreAddress, StoreKind
from ffdl_batch.host.fast_dataclass import dataclass

SFTP = ("sftp", "ssh")
"""Protocols of fsspec that are the same."""


class Mounting(str, Enum):
    """Whether stores of the types that FfDL mounts are mounted."""

    AUTO = "auto"
    """If the node can; else their data are copied to the same paths."""
    ALWAYS = "always"
    """An attempt on a node that cannot mount ends."""
    NEVER = "never"
    """Their data are copied."""


@dataclass(frozen=True)
class Brought:
    """A fetch, by its index, that no node can mount, and why."""

    transfer: int
    why: str


@dataclass(frozen=True)
class Mounts:
    """What nodes mount."""

    transfers: tuple[int, ...]
    """Indexes of the launch file's fetches that are mounted, read-only."""
    must: bool = False
    """Whether the attempt ends on a node that cannot mount; else data are copied."""
    cache_bytes: int = 0
    """How much of the data that were read a node keeps."""
    brought: tuple[Brought, ...] = ()
    """Fetches that would be mounted if their stores were of another kind."""


def why_brought(store: StoreAddress) -> str:
    """Return why nodes never mount a store of this kind; "" = they may."""
    if KINDS[store.kind].has_buckets:
        return ""
    if store.kind is StoreKind.FSSPEC:
        protocol = store.options.get("protocol", "")
        return "" if protocol in SFTP else f"stores of the protocol {protocol} are not mounted"
    return f"stores of the kind {store.kind.value} are not mounted"


SIGN = "ffdl-batch"


@dataclass(frozen=True)
class MountOwner:
    """The owner of a mount, which the mount's source names."""

    job: str
    """The scheduler's number of the job; "0" = none."""
    pid: int
    """The process that holds the mount."""
    start_ticks: int

    def source(self) -> str:
        """Return the mount's source in the mount table. The site's epilog uses the same form."""
        return f"{SIGN}:{self.job}:{self.pid}:{self.start_ticks}"


def read_source(text: str) -> MountOwner | None:
    """Return the owner of the mount with this source; None if it is not a mount of ffdl."""
    parts = text.split(":")
    if len(parts) != 4 or parts[0] != SIGN or not (parts[2].isdigit() and parts[3].isdigit()):
        return None
    return MountOwner(parts[1], int(parts[2]), int(parts[3]))

"""A tenant of a cluster: its limits and members, and what creating it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass

BACKEND = "kubernetes"
"""The only backend of the daemon of a tenant without accounts."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a tenant may use. None = without limit."""

    namespace: str
    gpus: int | None = None
    """Of all its pods together; so are `cpus` and `memory_bytes`."""
    cpus: float | None = None
    memory_bytes: int | None = None
    jobs: int | None = None
    """Jobs at a time."""
    users: tuple[str, ...] = ()
    """Users who may submit; so may the members of `groups`."""
    groups: tuple[str, ...] = ()
    service_account: str = ""
    """``<namespace>/<name>`` of a daemon that runs in the cluster and may submit; "" = none."""
    hub_user: str = ""
    """Name that the cluster knows a site's hub by. It may request tokens of the service account of the tenant's daemon;
    "" = there is no such account."""
    storage_bytes: int | None = None
    """Of all its claims together."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Limits of other resources, by name."""
    labels: Mapping[str, str] = field(default_factory=dict)
    debugging: bool = False
    """Whether its members may run commands in the pods of their jobs."""
    nodes: bool = False
    """Whether its members' daemons may list the nodes of the cluster."""


class Done(StrEnum):
    """What became of one object."""

    MADE = "made"
    SAME = "same"
    CHANGED = "changed"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class TenantStep:
    """What was done for one object."""

    about: str
    """Name of the object."""
    done: Done
    text: str = ""
    """What differs, or what was changed."""

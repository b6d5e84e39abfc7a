"""A tenant of a cluster: its limits and members, and what creating it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a tenant may use, None = without limit: `cpus`, `memory_bytes` and `gpus` by all its pods together,
    `storage_bytes` by its claims, `jobs` at a time. `resources` limits others by their names. `users` and `groups` may
    submit, and so may the service account ``<namespace>/<name>`` of a daemon that runs in the cluster ("" = none).
    `debugging`: they may run commands in the pods of their jobs. `nodes`: their daemons may list the nodes of the
    cluster."""

    namespace: str
    gpus: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    jobs: int | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    service_account: str = ""
    storage_bytes: int | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    debugging: bool = False
    nodes: bool = False


class Done(StrEnum):
    """What became of one object."""

    MADE = "made"
    SAME = "same"
    CHANGED = "changed"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class TenantStep:
    """`about` names the object, `text` says what differs, or what was changed."""

    about: str
    done: Done
    text: str = ""

"""Rooms for tenants on a cluster that many share, for ``ffdl-admin tenant``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from ffdl_batch.ports.scheduler import SchedulerError


class NotPermitted(SchedulerError):
    """The cluster does not let this user do it: the message says what on what."""


class NotOurs(SchedulerError):
    """What is to be made is there and somebody else's. Nothing was changed."""


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


@runtime_checkable
class KeepsTenants(Protocol):
    """A backend whose cluster has a room for each tenant."""

    def tenant_objects(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """What makes the tenant, in the order in which it is to be created. Asks nobody. Raises InvalidRequest."""
        ...

    def permissions(self, tenant: Tenant) -> Sequence[Mapping[str, Any]]:
        """Of these, what gives a daemon all that it needs, and no more. Raises InvalidRequest."""
        ...

    def create_tenant(self, tenant: Tenant, *, adopt: bool, update: bool, remove: bool) -> Sequence[TenantStep]:
        """Create missing objects. `adopt`: also in a namespace that is not ours. `update`: change objects that differ;
        otherwise they are not changed. `remove`: treat values that `tenant` does not name as differences, too.

        Raises InvalidRequest, SchedulerUnreachable, NotPermitted, NotOurs.
        """
        ...

    def advise(self, tenant: Tenant) -> Mapping[str, str]:
        """Settings of the backend with which jobs go to this tenant."""
        ...

"""Stores tenants, their accounts, members and quotas, and what operators have stopped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from sqlalchemy import and_, delete, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement

from ffdl_batch.domain.number_text import counted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.site.hub.schema import ACCOUNTS, ADMISSIONS, GUESTS, LEVERS, MEMBERS, QUOTAS, TENANTS
from ffdl_batch.site.hub.tokens.token_index import ALL_TOKENS, account_name
from ffdl_batch.store.database import Database

WHOLE, EACH = "", "*"
"""Values of `Quota.member`: the tenant as a whole, and each of its members."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_RESOURCE = re.compile(r"jobs|gpus(?::[A-Za-z0-9][A-Za-z0-9_.-]{0,62})?|gpu-hours/(?:day|week|month)", re.ASCII)
_LARGEST = 1e9
_GUEST = re.compile(r"[!-~]{1,64}", re.ASCII)


class TenantRefused(Exception):
    """The change is not possible; the text says why."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limit of a resource: ``gpus``, ``gpus:TYPE`` or ``jobs`` at any time, or ``gpu-hours/PERIOD``."""

    member: str
    """A user's name, WHOLE or EACH."""
    resource: str
    amount: float


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. `members` are the names of users by uid, `guests` those of members without an account."""

    name: str
    weight: float
    accounts: tuple[str, ...]
    members: Mapping[int, str]
    quotas: tuple[Quota, ...]
    guests: tuple[str, ...] = ()


class LeverKind(StrEnum):
    """What an operator can stop in an emergency."""

    SITE = "site"
    """All submissions."""
    TENANT = "tenant"
    """The submissions of a tenant."""
    USER = "user"
    """The submissions of a user."""
    TOKENS = ALL_TOKENS
    """The use of all tokens that were registered before."""
    SERVICE = "service"
    """All submissions, and all changes through the hub."""


@dataclass(frozen=True, slots=True)
class Lever:
    """What an operator has stopped. `subject` is the name of the tenant or user, else ""."""

    kind: LeverKind
    subject: str
    set_by: str
    set_at: float
    why: str

    @property
    def sentence(self) -> str:
        """Return a sentence with the operator, what is stopped, and the reason."""
        what = {
            LeverKind.SITE: "stopped all submissions",
            LeverKind.TOKENS: "revoked all tokens",
            LeverKind.SERVICE: "drained the service",
        }.get(self.kind, f"stopped the submissions of the {self.kind.value} {self.subject}")
        return f"{self.set_by} has {what}" + (f": {self.why}" if self.why else "")


class Tenants:
    """The tenants of a site. Safe in every thread. Methods raise StoreError, and TenantRefused for a change that is
    not possible."""

    def __init__(
        self,
        database: Database,
        account: Callable[[int], str] = account_name,
        daemons: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`database` has the hub's tables. `daemons` are the uids of the daemons of tenants without accounts."""
        self._database, self._account, self._daemons = database, account, daemons

    def read(self) -> list[Tenant]:
        """Return all tenants, by name."""
        with self._database.reading() as connection:
            return read_tenants(connection)

    def put(self, name: str, weight: float | None, accounts: Sequence[str] | None) -> None:
        """Create a tenant, or change its weight (default 1) or its accounts. None leaves a value as it is."""
        _check_name("a tenant", name)
        for account in accounts or ():
            _check_name("an account", account)
        if weight is not None and not 0 < weight <= _LARGEST:
            raise TenantRefused(f"weight: {weight:g} must be greater than 0 and at most {_LARGEST:g}")
        with self._database.writing() as connection:
            if not _exists(connection, name):
                connection.execute(insert(TENANTS).values(name=name, weight=1.0))
            self._link_daemon(connection, name)
            if weight is not None:
                connection.execute(update(TENANTS).where(TENANTS.c.name == name).values(weight=weight))
            if accounts is None:
                return
            connection.execute(delete(ACCOUNTS).where(ACCOUNTS.c.tenant == name))
            for account in dict.fromkeys(accounts):
                owner = connection.execute(select(ACCOUNTS.c.tenant).where(ACCOUNTS.c.account == account)).scalar()
                if owner is not None:
                    raise TenantRefused(f"the account {account} belongs to the tenant {owner}")
                connection.execute(insert(ACCOUNTS).values(account=account, tenant=name))

    def link_daemons(self) -> None:
        """Record the daemon uid of each tenant without accounts, as set in the site file."""
        with self._database.writing() as connection:
            query = select(TENANTS.c.name).where(TENANTS.c.name.in_(list(self._daemons)))
            for name in list(connection.execute(query).scalars()):
                self._link_daemon(connection, name)

    def _link_daemon(self, connection: Connection, name: str) -> None:
        if name in self._daemons:
            connection.execute(delete(MEMBERS).where(MEMBERS.c.tenant == name, MEMBERS.c.name == name))
            connection.execute(insert(MEMBERS).values(tenant=name, uid=self._daemons[name], name=name))

    def remove(self, name: str) -> None:
        """Remove a tenant with its members and quotas. It must have no live jobs."""
        with self._database.writing() as connection:
            _require(connection, name)
            live = len(connection.execute(select(ADMISSIONS.c.job).where(ADMISSIONS.c.tenant == name)).all())
            if live:
                raise TenantRefused(
                    f"tenant {name!r} has {counted(live, 'live job')}; run `ffdl-admin emergency stop --tenant "
                    f"{name}`, and try again after they end"
                )
            for table in (ACCOUNTS, MEMBERS, GUESTS, QUOTAS):
                connection.execute(delete(table).where(table.c.tenant == name))
            connection.execute(delete(TENANTS).where(TENANTS.c.name == name))

    def add_member(self, tenant: str, uid: int) -> None:
        """Add a user. A user may be a member of several tenants."""
        name = self._account(uid)
        if not name:
            raise TenantRefused(f"user {uid} has no account on this host")
        with self._database.writing() as connection:
            _require(connection, tenant)
            connection.execute(delete(MEMBERS).where(MEMBERS.c.tenant == tenant, MEMBERS.c.uid == uid))
            connection.execute(insert(MEMBERS).values(tenant=tenant, uid=uid, name=name))

    def add_guest(self, tenant: str, name: str) -> None:
        """Add a member without an account to a tenant with a daemon of its own. `name` is that of the site's OpenID
        provider. It can belong to one tenant only."""
        if not _GUEST.fullmatch(name):
            raise TenantRefused(
                f"member name {name!r} is invalid; use 1 to 64 printable ASCII characters without spaces"
            )
        with self._database.writing() as connection:
            _require(connection, tenant)
            owner = connection.execute(select(GUESTS.c.tenant).where(GUESTS.c.name == name)).scalar()
            if owner not in (None, tenant):
                raise TenantRefused(
                    f"{name!r} is already a member of tenant {owner!r}; remove it there first: "
                    f"ffdl-admin member remove {owner} {name}"
                )
            if owner is None:
                connection.execute(insert(GUESTS).values(name=name, tenant=tenant))

    def daemon_of_guest(self, name: str) -> int | None:
        """Return the uid of the daemon of this member's tenant; None if there is none."""
        with self._database.reading() as connection:
            tenant = connection.execute(select(GUESTS.c.tenant).where(GUESTS.c.name == name)).scalar()
        return self._daemons.get(tenant) if tenant is not None else None

    def remove_member(self, tenant: str, name: str) -> None:
        """Remove a user by name. Admitted jobs continue."""
        with self._database.writing() as connection:
            _require(connection, tenant)
            if connection.execute(delete(GUESTS).where(GUESTS.c.tenant == tenant, GUESTS.c.name == name)).rowcount:
                return
            _require_member(connection, tenant, name)
            connection.execute(delete(MEMBERS).where(MEMBERS.c.tenant == tenant, MEMBERS.c.name == name))
            connection.execute(delete(QUOTAS).where(QUOTAS.c.tenant == tenant, QUOTAS.c.member == name))

    def put_quota(self, tenant: str, quota: Quota) -> None:
        """Set a limit. It does not affect admitted jobs."""
        check_resource(quota.resource)
        if not 0 <= quota.amount <= _LARGEST:
            raise TenantRefused(f"quota: {quota.amount:g} must be between 0 and {_LARGEST:g}")
        with self._database.writing() as connection:
            _require(connection, tenant)
            if quota.member not in (WHOLE, EACH):
                _require_member(connection, tenant, quota.member)
            connection.execute(delete(QUOTAS).where(_is(tenant, quota)))
            connection.execute(
                insert(QUOTAS).values(tenant=tenant, member=quota.member, resource=quota.resource, amount=quota.amount)
            )

    def remove_quota(self, tenant: str, member: str, resource: str) -> None:
        """Remove a limit."""
        with self._database.writing() as connection:
            _require(connection, tenant)
            if not connection.execute(delete(QUOTAS).where(_is(tenant, Quota(member, resource, 0)))).rowcount:
                raise TenantRefused(
                    f"tenant {tenant!r} has no such quota of {resource}; `ffdl-admin tenant list` shows all"
                )

    def levers(self) -> list[Lever]:
        """Return what is stopped."""
        with self._database.reading() as connection:
            return read_levers(connection)

    def stop(self, kind: LeverKind, subject: str, set_by: str, why: str) -> None:
        """Stop something. Admitted jobs are not affected."""
        with self._database.writing() as connection:
            if kind is LeverKind.TENANT:
                _require(connection, subject)
            connection.execute(delete(LEVERS).where(LEVERS.c.kind == kind.value, LEVERS.c.subject == subject))
            at = self._database.now(connection)
            connection.execute(
                insert(LEVERS).values(kind=kind.value, subject=subject, set_by=set_by, set_at=at, why=why)
            )

    def undo(self, kind: LeverKind, subject: str) -> None:
        """Undo :meth:`stop`."""
        with self._database.writing() as connection:
            gone = connection.execute(delete(LEVERS).where(LEVERS.c.kind == kind.value, LEVERS.c.subject == subject))
            if not gone.rowcount:
                what = f"{kind.value} {subject}".rstrip()
                raise TenantRefused(f"nothing to undo for {what}; `ffdl-admin emergency list` shows what is stopped")


def read_tenants(connection: Connection) -> list[Tenant]:
    """Return all tenants, by name, with five statements."""
    accounts: dict[str, list[str]] = {}
    for row in connection.execute(select(ACCOUNTS).order_by(ACCOUNTS.c.account)):
        accounts.setdefault(row.tenant, []).append(row.account)
    members: dict[str, dict[int, str]] = {}
    for row in connection.execute(select(MEMBERS).order_by(MEMBERS.c.name)):
        members.setdefault(row.tenant, {})[row.uid] = row.name
    quotas: dict[str, list[Quota]] = {}
    for row in connection.execute(select(QUOTAS).order_by(QUOTAS.c.member, QUOTAS.c.resource)):
        quotas.setdefault(row.tenant, []).append(Quota(row.member, row.resource, row.amount))
    guests: dict[str, list[str]] = {}
    for row in connection.execute(select(GUESTS).order_by(GUESTS.c.name)):
        guests.setdefault(row.tenant, []).append(row.name)
    return [
        Tenant(
            row.name,
            row.weight,
            tuple(accounts.get(row.name, ())),
            members.get(row.name, {}),
            tuple(quotas.get(row.name, ())),
            tuple(guests.get(row.name, ())),
        )
        for row in connection.execute(select(TENANTS).order_by(TENANTS.c.name))
    ]


def read_levers(connection: Connection) -> list[Lever]:
    """Return what is stopped."""
    rows = connection.execute(select(LEVERS).order_by(LEVERS.c.kind, LEVERS.c.subject))
    return [Lever(LeverKind(row.kind), row.subject, row.set_by, row.set_at, row.why) for row in rows]


def check_resource(resource: str) -> None:
    """Raise TenantRefused if no quota can limit this."""
    if not _RESOURCE.fullmatch(resource):
        raise TenantRefused(
            f"unknown resource {resource!r}; use jobs, gpus, gpus:TYPE, or gpu-hours/day, /week or /month"
        )


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TenantRefused(
            f"{name!r} is not a valid name of {what}; use at most 63 letters, digits, '_', '.' or '-', and begin with "
            "a letter or digit"
        )


def _exists(connection: Connection, tenant: str) -> bool:
    return connection.execute(select(TENANTS.c.name).where(TENANTS.c.name == tenant)).first() is not None


def _require(connection: Connection, tenant: str) -> None:
    if not _exists(connection, tenant):
        raise TenantRefused(f"there is no tenant {tenant!r}; `ffdl-admin tenant list` shows all")


def _require_member(connection: Connection, tenant: str, name: str) -> None:
    query = select(MEMBERS.c.uid).where(MEMBERS.c.tenant == tenant, MEMBERS.c.name == name)
    if connection.execute(query).first() is None:
        raise TenantRefused(f"{name} is not a member of the tenant {tenant}")


def _is(tenant: str, quota: Quota) -> ColumnElement[bool]:
    columns = QUOTAS.c
    return and_(columns.tenant == tenant, columns.member == quota.member, columns.resource == quota.resource)

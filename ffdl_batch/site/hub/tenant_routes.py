"""Routes for daemons, about admissions and incidents, and for operators on the hub's host, about tenants and levers."""

from __future__ import annotations

import asyncio
import json
import math
import pwd
import re
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope, Send

from ffdl_batch.daemon.replies import PlainReply
from ffdl_batch.domain.access import HUB_API, Role
from ffdl_batch.domain.admission import encode_answers, read_claims, read_ids
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import SCHEMA, Problem
from ffdl_batch.services.hub import ADMISSIONS_PATH, CLUSTER_TOKEN_PATH, INCIDENTS_PATH, MAX_ADMISSIONS_BYTES
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.admission import Use
from ffdl_batch.site.hub.audit import Entry
from ffdl_batch.site.hub.bodies import read_json, read_small, unknown_route
from ffdl_batch.site.hub.callers import find_role, refuse
from ffdl_batch.site.hub.gpu_hours import PREFIX, NoAccounting
from ffdl_batch.site.hub.incident_index import read_incidents
from ffdl_batch.site.hub.settings import HubSettings
from ffdl_batch.site.hub.store import HubStore
from ffdl_batch.site.hub.tenants import EACH, WHOLE, Lever, LeverKind, Quota, Tenant, TenantRefused, check_resource
from ffdl_batch.site.hub.tokens.cluster_tokens import ClusterTokens
from ffdl_batch.site.hub.tokens.token_index import account_name

LONGEST_WHY = 200
PATIENCE_S = 5.0
"""Maximum time that setting a quota waits for the accounting. GPU jobs wait until the rest has been read."""
_NAME = r"([^/]{1,200})"
_TENANTS, _LEVERS = f"{HUB_API}/tenants", f"{HUB_API}/levers"
_TENANT = re.compile(rf"{_TENANTS}/{_NAME}")
_MEMBER = re.compile(rf"{_TENANTS}/{_NAME}/members/{_NAME}")
_QUOTA = re.compile(rf"{_TENANTS}/{_NAME}/quotas/(.{{1,200}})")
_LEVER = re.compile(rf"{_LEVERS}/(?:(site|tokens|service)|(tenant|user)/{_NAME})")

_OF_DAEMONS = (ADMISSIONS_PATH, INCIDENTS_PATH, CLUSTER_TOKEN_PATH)


class TenantRoutes:
    """Answers these requests. The peer of the hub's socket is the caller. Use it in one event loop."""

    def __init__(self, settings: HubSettings, store: HubStore) -> None:
        self._settings, self._tenants, self._admission = settings, store.tenants, store.admission
        self._gpu_hours, self._incidents, self._tokens = store.gpu_hours, store.incidents, store.tokens
        self._cluster_tokens = ClusterTokens(settings)

    def account_of(self, uid: int) -> str:
        """Return the name of the account of a uid, or of the tenant whose daemon has it; "" if there is none."""
        return self._settings.account_of(uid)

    @staticmethod
    def has(path: str) -> bool:
        """Return whether a path is one of these."""
        return path.startswith((*_OF_DAEMONS, _TENANTS, _LEVERS))

    async def answer(self, scope: Scope, receive: Receive, send: Send, entry: Entry) -> None:
        """Answer a request of the user `entry.caller`. Raises Refused, CallerGone, StoreError."""
        assert entry.caller is not None
        if scope["path"].startswith(_OF_DAEMONS):
            has_secret = scope["path"] == CLUSTER_TOKEN_PATH  # then it is in the audit
            entry.user, entry.role = entry.caller, "daemon" if has_secret else "owner"
            plain = await self._answer_daemon(scope, receive, entry.caller)
        else:
            plain = await self._manage(scope, receive, entry)
        await PlainReply({"schema": SCHEMA, **plain})(scope, receive, send)

    async def _answer_daemon(self, scope: Scope, receive: Receive, uid: int) -> dict[str, Any]:
        method, path = scope["method"], scope["path"]
        if (method, path) == ("POST", ADMISSIONS_PATH):
            body = await read_small(receive, MAX_ADMISSIONS_BYTES)
            claims, handed = read_json(body, lambda plain: (read_claims(plain), read_ids(plain, "handed")))
            return encode_answers(await asyncio.to_thread(self._admission.decide, uid, claims, handed))
        if (method, path) == ("GET", ADMISSIONS_PATH):
            return {"live": await asyncio.to_thread(self._admission.live, uid)}
        if (method, path) == ("GET", CLUSTER_TOKEN_PATH):
            return await self._cluster_tokens.issue(uid)
        if (method, path) == ("GET", INCIDENTS_PATH):
            return {"newest": await asyncio.to_thread(self._incidents.newest, uid)}
        if (method, path) == ("POST", INCIDENTS_PATH):
            rows = read_json(await read_small(receive, MAX_ADMISSIONS_BYTES), read_incidents)
            await asyncio.to_thread(self._incidents.add, uid, rows)
            return {}
        if (method, path) == ("POST", f"{ADMISSIONS_PATH}/ended"):
            ended = read_json(await read_small(receive, MAX_ADMISSIONS_BYTES), lambda plain: read_ids(plain, "ended"))
            await asyncio.to_thread(self._admission.end, uid, ended)
            return {}
        raise unknown_route(scope)

    async def _manage(self, scope: Scope, receive: Receive, entry: Entry) -> dict[str, Any]:
        assert entry.caller is not None
        role = await asyncio.to_thread(find_role, self._settings, entry.caller)
        if role is None or (role is Role.AUDITOR and scope["method"] != "GET"):
            raise refuse(403, f"user {entry.caller} is not an operator of this site")
        entry.role = role.value
        if scope["method"] == "GET":
            return await asyncio.to_thread(self._read, scope)
        body = await read_small(receive)
        plain = read_json(body or b"{}", _read_object)
        entry.values = json.dumps(plain) if plain else ""
        try:
            await asyncio.to_thread(self._change, scope, plain, entry.caller)
        except TenantRefused as error:
            raise Refused(Problem("C101", str(error), ExitCode.FAILED), HTTPStatus.CONFLICT) from error
        return {}

    def _read(self, scope: Scope) -> dict[str, Any]:
        if scope["path"] == _TENANTS:
            uses = self._admission.uses()
            own = frozenset(self._settings.tenants.values())
            return {
                "tenants": [_describe(one, uses[one.name], own) for one in self._tenants.read() if one.name in uses]
            }
        if scope["path"] == _LEVERS:
            return {"levers": [_describe_lever(one) for one in self._tenants.levers()]}
        raise unknown_route(scope)

    def _change(self, scope: Scope, plain: dict[str, Any], uid: int) -> None:
        """Make a change. Raises Refused, TenantRefused, StoreError."""
        key, path = scope["method"], scope["path"]
        if (found := _TENANT.fullmatch(path)) and key == "PUT":
            self._tenants.put(found[1], *_read_tenant(plain))
        elif found and key == "DELETE":
            self._tenants.remove(found[1])
            self._forget_tokens(found[1])
        elif (found := _MEMBER.fullmatch(path)) and key == "PUT":
            self._add_member(found[1], found[2])
        elif found and key == "DELETE":
            self._tenants.remove_member(found[1], found[2])
            self._forget_tokens(found[1])
        elif (found := _QUOTA.fullmatch(path)) and key == "PUT":
            self._put_quota(found[1], _read_quota(plain, found[2]))
        elif found and key == "DELETE":
            self._tenants.remove_quota(found[1], _read_member(plain), found[2])
        elif found := _LEVER.fullmatch(path):
            kind, subject = LeverKind(found[1] or found[2]), found[3] or ""
            if key == "PUT":
                if kind is LeverKind.USER and subject not in self._settings.tenants:
                    _uid_of(subject)
                self._tenants.stop(kind, subject, account_name(uid) or str(uid), _read_why(plain))
            elif key == "DELETE":
                self._tenants.undo(kind, subject)
            else:
                raise unknown_route(scope)
        else:
            raise unknown_route(scope)

    def _add_member(self, tenant: str, name: str) -> None:
        """Add a member, who needs no account if the tenant has a daemon of its own."""
        if tenant in self._settings.tenants:
            self._tenants.add_guest(tenant, name)
        else:
            self._tenants.add_member(tenant, _uid_of(name))

    def _forget_tokens(self, tenant: str) -> None:
        """Forget the tokens of a tenant's own daemon, also those of a removed member. The others log in again."""
        if (daemon := self._settings.tenants.get(tenant)) is not None:
            self._tokens.remove_all(daemon)

    def _put_quota(self, tenant: str, quota: Quota) -> None:
        """Set a limit. For GPU-hours, the accounting is read first: without it, jobs would wait. Raises TenantRefused,
        StoreError."""
        check_resource(quota.resource)
        if quota.resource.startswith(PREFIX):
            if tenant in self._settings.tenants:
                raise TenantRefused("GPU-hours quotas need Slurm's accounting, and the tenant's jobs run on Kubernetes")
            try:
                self._gpu_hours.read(quota.resource, patience_s=PATIENCE_S)
            except NoAccounting as error:
                raise TenantRefused(f"a GPU-hours quota needs the scheduler's accounting: {error}") from error
        self._tenants.put_quota(tenant, quota)


def _describe(tenant: Tenant, use: Use, daemons: Collection[int]) -> dict[str, Any]:
    """Return a tenant as JSON. `daemons` are the uids of tenants' own daemons, which are not listed as members."""
    uids = {name: uid for uid, name in tenant.members.items()}
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "accounts": list(tenant.accounts),
        "members": sorted([*(name for uid, name in tenant.members.items() if uid not in daemons), *tenant.guests]),
        "quotas": [
            {
                "member": one.member,
                "resource": one.resource,
                "amount": one.amount,
                "used": None if one.member == EACH else use.of(one, uids.get(one.member, -1)),
            }
            for one in tenant.quotas
        ],
    }


def _describe_lever(lever: Lever) -> dict[str, Any]:
    return {
        "kind": lever.kind.value,
        "subject": lever.subject,
        "set_by": lever.set_by,
        "set_at": lever.set_at,
        "why": lever.why,
        "sentence": lever.sentence,
    }


def _uid_of(name: str) -> int:
    """Return the uid of an account of this host. Raises TenantRefused."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise TenantRefused(f"this host has no account {name!r}") from None


def _read_object(plain: object) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise ValueError("it is not a JSON object")
    return plain


def _bad(message: str) -> Refused:
    return Refused(Problem("C101", message, ExitCode.USAGE), 422)


def _read_number(plain: dict[str, Any], key: str) -> float:
    found = plain.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise _bad(f"{key} must be a number")
    return float(found)


def _read_tenant(plain: dict[str, Any]) -> tuple[float | None, list[str] | None]:
    accounts = plain.get("accounts")
    if accounts is not None and not (isinstance(accounts, list) and all(isinstance(one, str) for one in accounts)):
        raise _bad("accounts must be a list of strings")
    return _read_number(plain, "weight") if plain.get("weight") is not None else None, accounts


def _read_member(plain: dict[str, Any]) -> str:
    """Return a user's name, EACH or WHOLE."""
    found = plain.get("member", WHOLE)
    if not isinstance(found, str):
        raise _bad(f"member must be the name of a user, {EACH!r} for each member, or {WHOLE!r} for the whole tenant")
    return found


def _read_quota(plain: dict[str, Any], resource: str) -> Quota:
    return Quota(_read_member(plain), resource, _read_number(plain, "amount"))


def _read_why(plain: dict[str, Any]) -> str:
    found = plain.get("why", "")
    if not isinstance(found, str) or len(found) > LONGEST_WHY or not found.isprintable():
        raise _bad(f"why must be a line of at most {LONGEST_WHY} characters")
    return found

"""Makes a tenant's objects, and says what differs of those that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffdl_batch.domain.scheduler_errors import InvalidRequest, NotOurs, NotPermitted, SchedulerUnreachable
from ffdl_batch.domain.tenant import Done, Tenant, TenantStep
from ffdl_batch.domain.terminal_text import json_text, printable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_kubernetes.client import ClusterClient, Refused
from ffdl_kubernetes.objects.names import MANAGER, MANAGER_LABEL
from ffdl_kubernetes.quantities import amount
from ffdl_kubernetes.settings import KubernetesSettings
from ffdl_kubernetes.tenancy.tenant_objects import (
    ROLE,
    SECURITY,
    is_counted,
    node_binding,
    permission_objects,
    quota_amounts,
    quota_name,
    tenant_objects,
)

Plain = Mapping[str, Any]
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_PART, _NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"({_PART}(\.{_PART})*/)?{_NAME}", re.ASCII)
_LABEL_VALUE = re.compile(rf"({_NAME})?", re.ASCII)
"""kubernetes.io, "Labels and Selectors"."""
_ACCOUNT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_WHOLE = ("spec", "rules", "subjects", "roleRef", "automountServiceAccountToken")
"""What is compared of an object beside its labels."""
_AMOUNTS = ("hard", "default")
"""Parts of a spec in which an amount that is not wanted is a difference."""
_SUBJECT = frozenset({"apiGroup", "kind", "namespace", "name"})
_RULE = frozenset({"apiGroups", "resources", "verbs"})
_LONGEST = 200
"""Characters of one value in a message."""
_MOST = 10
"""Items of one list in a message."""


def objects_of(tenant: Tenant, settings: KubernetesSettings) -> list[Plain]:
    """Return all objects of the tenant. Raises InvalidRequest."""
    _check(tenant)
    _check_limits(tenant, settings.gpu_resource)
    return list(tenant_objects(tenant, settings.gpu_resource))


def permissions_of(tenant: Tenant) -> list[Plain]:
    """Role and RoleBinding. Raises InvalidRequest."""
    _check(tenant)
    return list(permission_objects(tenant))


@dataclass(frozen=True, slots=True)
class Manner:
    """What :meth:`ffdl_batch.ports.capabilities.KeepsTenants.create_tenant` may do to existing objects."""

    adopt: bool = False
    update: bool = False
    remove: bool = False


def create_tenant(tenant: Tenant, settings: KubernetesSettings, manner: Manner = Manner()) -> Sequence[TenantStep]:
    """See :class:`ffdl_batch.ports.capabilities.KeepsTenants`."""
    objects = objects_of(tenant, settings)
    client = ClusterClient(replace(settings, namespace=tenant.namespace))
    of_namespace = replace(manner, update=manner.update or manner.adopt)
    try:
        made = [_make(client, one, manner if at else of_namespace) for at, one in enumerate(objects)]
        if tenant.nodes and (subjects := _existing_subjects(client, objects)):
            made.append(_make(client, node_binding(tenant.namespace, subjects), manner))
        return made
    finally:
        client.close()


def _existing_subjects(client: ClusterClient, objects: Sequence[Plain]) -> Sequence[Plain]:
    """Return who has the Role already, if the tenant names no users."""
    if any(one["kind"] == "RoleBinding" for one in objects):
        return ()
    try:
        return (client.get("RoleBinding", ROLE) or {}).get("subjects") or ()
    except Refused as refused:
        raise _explain(refused, f"RoleBinding {ROLE}") from refused


def _make(client: ClusterClient, wanted: Plain, manner: Manner) -> TenantStep:
    kind, name = str(wanted["kind"]), str(wanted["metadata"]["name"])
    about = f"{kind} {name}"
    try:
        found = client.get(kind, name)
        if found is None:
            found, is_new = client.create(wanted)
            if is_new:
                return TenantStep(about, Done.MADE)
        if found["metadata"].get("deletionTimestamp"):
            raise SchedulerUnreachable(f"{about} is being deleted; try again when it is gone")
        if (found["metadata"].get("labels") or {}).get(MANAGER_LABEL) != MANAGER and not manner.adopt:
            raise NotOurs(
                f"{about} already exists and was not created by ffdl: it has no label {MANAGER_LABEL}={MANAGER}. "
                "Nothing was changed; --adopt lets ffdl manage it"
            )
        if not manner.remove:
            wanted = added(found, wanted)
        differing = "; ".join(differences(found, wanted))
        if not differing:
            return TenantStep(about, Done.SAME)
        if not manner.update:
            return TenantStep(about, Done.DIFFERS, differing)
        client.replace(_updated(found, wanted))
    except Refused as refused:
        raise _explain(refused, about) from refused
    return TenantStep(about, Done.CHANGED, differing)


def added(found: Plain, wanted: Plain) -> Plain:
    """Return `wanted` with the rules, subjects, limits of a quota and defaults of containers that only `found` has."""
    both = dict(wanted)
    for part in ("rules", "subjects"):
        if part in wanted:
            there = found.get(part) or []
            both[part] = [*there, *(one for one in wanted[part] if one not in there)]
    if "hard" in (wanted.get("spec") or {}):
        limits = {**((found.get("spec") or {}).get("hard") or {}), **wanted["spec"]["hard"]}
        both["spec"] = {**wanted["spec"], "hard": limits}
    if "limits" in (wanted.get("spec") or {}):
        there = {one["type"]: one for one in (found.get("spec") or {}).get("limits") or ()}
        ranges = [
            {**one, "default": {**(there.get(one["type"], {}).get("default") or {}), **one["default"]}}
            for one in wanted["spec"]["limits"]
        ]
        both["spec"] = {**wanted["spec"], "limits": ranges}
    return both


def differences(found: Plain, wanted: Plain) -> Iterator[str]:
    """Return what differs between `wanted` and the cluster. Amounts are compared as amounts (1024Mi is 1Gi)."""
    labels = found["metadata"].get("labels") or {}
    for label, value in (wanted["metadata"].get("labels") or {}).items():
        if labels.get(label) != value:
            yield f"label {label} is {_shown(labels.get(label))}, wanted {value}"
    for part in _WHOLE:
        if part in wanted and not _same(wanted[part], found.get(part), exact=part != "spec"):
            if part == "spec" and "hard" in wanted[part]:
                yield from _of_quota(wanted[part]["hard"], (found.get(part) or {}).get("hard") or {})
            elif isinstance(wanted[part], list) and isinstance(found.get(part), list):
                yield from _of_list(part, wanted[part], found[part])
            else:
                yield from _of_part(part, wanted[part], found.get(part), exact=part != "spec")


def _of_part(path: str, wanted: Any, found: Any, *, exact: bool) -> Iterator[str]:
    """Yield the innermost values that differ, each with its path."""
    if _same(wanted, found, exact=exact):
        return
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in (*wanted, *(one for one in found if exact and one not in wanted)):
            is_exact = exact or key in _AMOUNTS
            yield from _of_part(f"{path}.{key}", wanted.get(key), found.get(key), exact=is_exact)
    elif _are_tables(wanted) and _are_tables(found) and len(wanted) == len(found):
        for at, pair in enumerate(zip(wanted, found, strict=True)):
            yield from _of_part(f"{path}[{at}]", *pair, exact=exact)
    else:
        yield f"{path} is {_shown(found)}, wanted {_shown(wanted)}"


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def _of_quota(wanted: Plain, found: Plain) -> Iterator[str]:
    for name in sorted({*wanted, *found}):
        if not _same(wanted.get(name), found.get(name), exact=True):
            yield f"{name} is {found.get(name, 'not limited')}, wanted {wanted.get(name, 'not limited')}"


def _of_list(part: str, wanted: Sequence[Any], found: Sequence[Any]) -> Iterator[str]:
    lacks, more = [one for one in wanted if one not in found], [one for one in found if one not in wanted]
    if lacks:
        yield f"missing {part}: {_listed(lacks)}"
    if more:
        yield f"extra {part}: {_listed(more)}"
    if not lacks and not more:
        yield f"the {part} are in another order, or one is listed twice"


def _listed(items: Sequence[Any]) -> str:
    more = f", and {len(items) - _MOST} more" if len(items) > _MOST else ""
    return ", ".join(map(_item, items[:_MOST])) + more


def _item(value: Any) -> str:
    """Return a subject as ``User ada``, a rule as ``pods,pods/log [get list]``, and others as JSON."""
    if isinstance(value, Mapping) and {"kind", "name"} <= set(value) <= _SUBJECT:
        namespace = f"{value['namespace']}/" if value.get("namespace") else ""
        return _shown(f"{value['kind']} {namespace}{value['name']}")
    if isinstance(value, Mapping) and set(value) == _RULE:
        names = [f"{name}.{group}" if group else name for group in value["apiGroups"] for name in value["resources"]]
        return _shown(f"{','.join(names)} [{' '.join(value['verbs'])}]")
    return _shown(value)


def _same(wanted: Any, found: Any, *, exact: bool) -> bool:
    """Return whether `found` has all of `wanted`. A spec may have more, because the server adds defaults; amounts may
    not."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return not wanted and found is None
        if exact and set(wanted) != set(found):
            return False
        return all(_same(value, found.get(key), exact=exact or key in _AMOUNTS) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(wanted) == len(found)
            and all(_same(*pair, exact=exact) for pair in zip(wanted, found, strict=True))
        )
    return bool(wanted == found) or (amount(wanted) is not None and amount(wanted) == amount(found))


def _updated(found: Plain, wanted: Plain) -> Plain:
    """`found` with all that is wanted; the rest of it stays, and its version is demanded."""
    labels = {**(found["metadata"].get("labels") or {}), **(wanted["metadata"].get("labels") or {})}
    parts = {part: wanted[part] for part in _WHOLE if part in wanted}
    return {**found, **parts, "metadata": {**found["metadata"], "labels": labels}}


def _explain(refused: Refused, about: str) -> Exception:
    said = f"{about}: the API server refused it ({refused.status} {refused.reason}): {refused}"
    if refused.status == 401:
        return NotPermitted(said)
    if refused.status == 403:
        return NotPermitted(f"{said}; a tenant is made by somebody who may do that, or from --print")
    if refused.status == 409:
        return SchedulerUnreachable(f"{said}; somebody else changes it: try again")
    return InvalidRequest(said)


def _check(tenant: Tenant) -> None:
    name = tenant.namespace
    if not _LABEL.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is not the name of a namespace: up to 63 lower-case letters, digits and hyphens within"
        )
    if name.startswith("kube-"):
        raise InvalidRequest(f"{name}: names with kube- are the cluster's own")
    if tenant.service_account and not _ACCOUNT.fullmatch(tenant.service_account):
        raise InvalidRequest(f"{tenant.service_account!r} is not a service account; write namespace/name")
    for kind, names in (("user", tenant.users), ("group", tenant.groups)):
        for one in names:
            if not one or one != one.strip():
                raise InvalidRequest(
                    f"{one!r} is not the name of a {kind}: it is empty, or begins or ends with a space; write the name "
                    "as the cluster has it"
                )
    for key, value in tenant.labels.items():
        if key in SECURITY or key == MANAGER_LABEL:
            raise InvalidRequest(f"{key} is set by this command itself; leave it out")
        if not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
            raise InvalidRequest(
                f"{key}={value} is not a label: names are like example.com/team or team, values up to 63 letters, "
                "digits, hyphens, dots and underscores within"
            )


def _check_limits(tenant: Tenant, gpu_resource: str) -> None:
    for resource, text in tenant.resources.items():
        if not _LABEL_KEY.fullmatch(resource):
            raise InvalidRequest(
                f"{resource}={text}: {resource!r} is not the name of a resource; write one like limits.cpu or "
                "nvidia.com/mig-1g.10gb"
            )
        if (found := amount(text)) is None or found < 0:
            raise InvalidRequest(
                f"{resource}={text}: {text!r} is not an amount; write a number from 0, or one with Mi, Gi, ..."
            )
        if not quota_name(resource):
            raise InvalidRequest(
                f"{resource}={text}: no quota can limit {resource!r}; write a resource such as cpu, limits.cpu or "
                "nvidia.com/mig-1g.10gb, or a number of objects such as pods or count/deployments.apps"
            )
        if is_counted(resource) and found % 1:
            raise InvalidRequest(f"{resource}={text}: {text!r} is not a whole number, and a quota counts {resource}")
    names = [name for name, _ in quota_amounts(tenant, gpu_resource)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidRequest(f"the limit {repeated[0]} is given twice; give it once, by its own option or --resource")


def _shown(value: Any) -> str:
    """Return a value for people: texts as they are, others as JSON, and no more than the beginning of long ones."""
    if value is None:
        return "not set"
    text = printable(value, one_line=True) if isinstance(value, str) else json_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

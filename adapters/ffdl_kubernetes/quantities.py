"""Read amounts of resources: quantities, what pods ask for, and the refusals of a ResourceQuota. Pure.

Sources: kubernetes.io, "Quantity", "Pod resource sharing within containers", "Pod overhead"; KEP-753 for sidecars,
KEP-2837 for resources of whole pods; the admission plugin ResourceQuota (`resourcequota/controller.go`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from ffdl_batch.domain.number_text import size_text

_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)([a-zA-Z]{0,2})", re.ASCII)
QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>\S+)"
)
"""A refusal of a ResourceQuota's."""


def amount(text: object) -> Decimal | None:
    """Return a quantity as a number (kubernetes.io, "Quantity"); None if it is not one."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _UNITS:
        return None
    try:
        return Decimal(match[1]) * _UNITS[match[2]]
    except InvalidOperation:
        return None


def amounts(text: str) -> dict[str, str]:
    """Resource -> amount, of one of the lists in a refusal."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): most.strip() for name, _, most in pairs}


def never_given(refusal: re.Match[str]) -> list[str]:
    """Return the resources for which the request exceeds the whole quota, even if no other job uses it."""
    most = amounts(refusal["limit"])
    found = ((name, amount(asked), amount(most.get(name))) for name, asked in amounts(refusal["asked"]).items())
    return [name for name, asked, limit in found if asked is not None and limit is not None and asked > limit]


def needed_cpu_limit(limit_ranges: Sequence[Mapping[str, Any]], quotas: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the CPU limit that containers without one get in a namespace, in CPUs; 0 if pods without one are refused,
    and None if they need none (kubernetes.io, "Limit Ranges", "Resource Quotas")."""
    items = [item for one in limit_ranges for item in one.get("spec", {}).get("limits") or ()]
    given = [amount(str(found)) for item in items if (found := (item.get("default") or {}).get("cpu")) is not None]
    if known := [one for one in given if one is not None]:
        return float(min(known))
    demanded = any("cpu" in (item.get(key) or {}) for item in items for key in ("max", "maxLimitRequestRatio"))
    limited = any("limits.cpu" in (one.get("spec", {}).get("hard") or {}) for one in quotas)
    return 0.0 if demanded or limited else None


def needed_storage(limit_ranges: Sequence[Mapping[str, Any]], quotas: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the ephemeral storage that containers without an amount get in a namespace with a quota for it, in bytes;
    0 if pods without one are refused, and None if no quota counts it. Quotas with scopes may not count our pods."""
    counted = {
        name
        for one in quotas
        if not (one.get("spec", {}).get("scopes") or one.get("spec", {}).get("scopeSelector"))
        for name in one.get("spec", {}).get("hard") or ()
        if name.rpartition(".")[2] == STORAGE
    }
    if not counted:
        return None
    keys = ("default",) if f"limits.{STORAGE}" in counted else ("defaultRequest", "default")
    items = [item for one in limit_ranges for item in one.get("spec", {}).get("limits") or ()]
    given = [read_amounts(item.get(key)).get(STORAGE, NOTHING) for item in items for key in keys]
    return float(min((one for one in given if one), default=NOTHING))


STORAGE = "ephemeral-storage"
Plain = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
NOTHING = Decimal(0)


def read_amounts(raw: object) -> dict[str, Decimal]:
    """Read a table of quantities. Invalid ones count as 0."""
    table = raw if isinstance(raw, Mapping) else {}
    return {str(name): found for name, text in table.items() if (found := amount(_text(text))) is not None}


def added(parts: Iterable[Amounts]) -> dict[str, Decimal]:
    """Return the sums of all amounts."""
    found: dict[str, Decimal] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, NOTHING) + value
    return found


def asked_of(pod: Plain, *, limits: bool = False) -> dict[str, Decimal]:
    """Return what the pod with this spec requests, or with `limits` its limits: the sum over its containers, or the
    maximum while it begins, if that is larger."""
    sidecars: dict[str, Decimal] = {}
    beginning: dict[str, Decimal] = {}
    for one in pod.get("initContainers") or ():
        own = _of_container(one, limits=limits)
        now = added((sidecars, own))
        beginning = _larger(beginning, now)
        if one.get("restartPolicy") == "Always":
            sidecars = now
    running = added([sidecars, *(_of_container(one, limits=limits) for one in pod.get("containers") or ())])
    whole = _of_container(pod, limits=limits)
    return added([{**_larger(running, beginning), **whole}, read_amounts(pod.get("overhead"))])


def amount_text(resource: str, value: Decimal) -> str:
    """Return an amount for people: bytes as KiB, MiB, ..., others as a number."""
    if resource.endswith(("memory", "storage")):
        return size_text(float(value))
    return f"{value.normalize():f}"


def _of_container(one: Plain, *, limits: bool) -> dict[str, Decimal]:
    resources = one.get("resources") or {}
    most = read_amounts(resources.get("limits"))
    return most if limits else {**most, **read_amounts(resources.get("requests"))}  # no request = its limit


def _text(raw: object) -> object:
    """Return a quantity as text. The API accepts whole numbers, too."""
    return str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw


def _larger(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: max(one.get(name, NOTHING), other.get(name, NOTHING)) for name in {*one, *other}}

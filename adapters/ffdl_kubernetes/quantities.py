"""Amounts of resources, and what a ResourceQuota says when it refuses. Pure.

Source of the wording: the admission plugin ResourceQuota (`resourcequota/controller.go`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

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
    """A quantity as a number (kubernetes.io, "Quantity"); None for what is none."""
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
    """Resources of which more is asked for than the quota has, whoever else uses it."""
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

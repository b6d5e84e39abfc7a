"""Amounts of resources, and what a ResourceQuota says when it refuses. Pure.

Source of the wording: the admission plugin ResourceQuota (`resourcequota/controller.go`).
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(10) ** power for unit, power in zip("num", (-9, -6, -3), strict=True)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:e[+-]?[0-9]+)?)([a-zA-Z]{0,2})", re.ASCII)
QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.+?), used: (?P<used>.+?), limited: (?P<limit>.+)"
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

"""Amounts as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

from tests.fakes.kubernetes.kinds import Obj
from tests.fakes.kubernetes.objects import containers_of

_BINARY = {f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", 1)}
_FACTORS = {
    **_BINARY, **{letter: Decimal(1000**power) for power, letter in enumerate("kMGTPE", 1)}, "m": Decimal("1e-3"),
}  # fmt: skip
Amounts = dict[str, Decimal]
"""Resource -> amount."""


def amount(text: object) -> Decimal:
    said = str(text)
    for suffix, factor in _FACTORS.items():  # the longer ones first
        if said.endswith(suffix):
            return Decimal(said.removesuffix(suffix)) * factor
    return Decimal(said)


def quantity(value: Decimal, resource: str) -> str:
    """Return the number as a quantity: thousandths as ``m``, and bytes in the largest power of two that fits."""
    if value != value.to_integral_value():
        return f"{int(value * 1000)}m"
    if value and resource in ("memory", "storage", "ephemeral-storage"):
        for suffix, size in reversed(_BINARY.items()):
            if value % size == 0:
                return f"{int(value / size)}{suffix}"
    return str(int(value))


def add(total: Amounts, more: Amounts) -> None:
    """Add `more` to `total`, in place."""
    for name, value in more.items():
        total[name] = total.get(name, Decimal(0)) + value


def pod_requests(spec: Obj, what: str = "requests") -> Amounts:
    """Return what a pod asks for: its containers and sidecars together."""
    total: Amounts = {}
    for container in containers_of(spec):
        asked = container.get("resources", {}).get(what) or {}
        add(total, {name: amount(value) for name, value in asked.items()})
    return total

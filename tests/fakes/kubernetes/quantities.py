"""Amounts as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

from tests.fakes.kubernetes.kinds import Obj

_FACTORS = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip


def amount(text: object) -> Decimal:
    """The number that a quantity means."""
    said = str(text)
    for suffix in sorted(_FACTORS, key=len, reverse=True):
        if suffix and said.endswith(suffix):
            return Decimal(said[: -len(suffix)]) * _FACTORS[suffix]
    return Decimal(said)


def quantity(value: Decimal, like: str = "") -> str:
    """The number as a quantity: thousandths as ``m``, and bytes in the largest power of two that fits."""
    if value != value.to_integral_value():
        return f"{int(value * 1000)}m"
    whole = int(value)
    if like.endswith("i") or like in ("memory", "storage", "ephemeral-storage"):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            size = int(_FACTORS[suffix])
            if whole and whole % size == 0:
                return f"{whole // size}{suffix}"
    return str(whole)


def pod_requests(spec: Obj, what: str = "requests") -> dict[str, Decimal]:
    """What a pod asks for: its containers and native sidecars together, or the largest init container beside the
    sidecars before it."""
    total: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    for container in spec.get("containers") or []:
        _add(total, container, what)
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            _add(sidecars, container, what)
            _add(total, container, what)
            alone = dict(sidecars)
        else:
            alone = dict(sidecars)
            _add(alone, container, what)
        for name, value in alone.items():
            largest[name] = max(largest.get(name, Decimal(0)), value)
    names = {**total, **largest}
    return {name: max(total.get(name, Decimal(0)), largest.get(name, Decimal(0))) for name in names}


def _add(total: dict[str, Decimal], container: Obj, what: str) -> None:
    for name, value in (container.get("resources", {}).get(what) or {}).items():
        total[name] = total.get(name, Decimal(0)) + amount(value)

"""What pods ask for, as amounts by resource. Pure.

Source: the scheduler's count (kubernetes.io, "Pod resource sharing within containers", "Pod overhead", KEP-753 for
sidecars, KEP-2837 for resources of whole pods).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from ffdl_batch.domain.number_text import size_text
from ffdl_kubernetes.quantities import amount

Plain = Mapping[str, Any]
Amounts = Mapping[str, Decimal]
NOTHING = Decimal(0)


def read_amounts(raw: object) -> dict[str, Decimal]:
    """A table of quantities; what is none of these counts as nothing."""
    table = raw if isinstance(raw, Mapping) else {}
    return {str(name): found for name, text in table.items() if (found := amount(_text(text))) is not None}


def added(parts: Iterable[Amounts]) -> dict[str, Decimal]:
    """All of them together."""
    found: dict[str, Decimal] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, NOTHING) + value
    return found


def asked_of(pod: Plain, *, limits: bool = False) -> dict[str, Decimal]:
    """What the pod with this spec asks for, or with `limits` what it is limited to: the larger one of what its
    containers ask for together and what is asked for while it begins."""
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
    """For a person: bytes as KiB, MiB, ..., and all else as it is counted."""
    if resource.endswith(("memory", "storage")):
        return size_text(float(value))
    return f"{value.normalize():f}"


def _of_container(one: Plain, *, limits: bool) -> dict[str, Decimal]:
    resources = one.get("resources") or {}
    most = read_amounts(resources.get("limits"))
    return most if limits else {**most, **read_amounts(resources.get("requests"))}  # no request = its limit


def _text(raw: object) -> object:
    """The API takes whole numbers as quantities, too."""
    return str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw


def _larger(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: max(one.get(name, NOTHING), other.get(name, NOTHING)) for name in {*one, *other}}

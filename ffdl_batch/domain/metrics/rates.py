"""Prices of GPU-hours and CPU-hours, as a site sets them, and the fraction of a GPU that a MIG device is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass

_HOUR_S = 3600.0
_MIG = re.compile(r"(?:^|[_.:-])([1-7])g\.(\d{1,3})gb", re.IGNORECASE | re.ASCII)
_SLICES = 7
"""Slices of a GPU (NVIDIA, Multi-Instance GPU User Guide)."""
_OF_FOUR = {("1", "6"), ("2", "12"), ("4", "24"), ("2", "48"), ("4", "96")}
"""Profiles of GPUs with four slices: A30 and RTX PRO 6000."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices in `currency`, which is printed as it is and never converted."""

    currency: str = ""
    gpu_hour: float = 0.0
    """For GPUs whose type is not among `gpu_types`, or was not requested."""
    cpu_hour: float = 0.0
    gpu_types: Mapping[str, float] = field(default_factory=dict)
    """Type → price of a device of this type, which may be a fraction of a GPU; case does not matter."""
    gpu_parts: Mapping[str, float] = field(default_factory=dict)
    """Type → fraction of a GPU that a device of this type is, if its name does not show that."""

    @property
    def is_set(self) -> bool:
        """Whether there is any price. Without one, reports have no column for costs."""
        return bool(self.gpu_hour or self.cpu_hour or any(self.gpu_types.values()))

    def part_of_gpu(self, gpu_type: str) -> float:
        """Return the fraction of a GPU that a device of this type ("" = any) is: below 1 for MIG devices, else 1."""
        part = _by_type(self.gpu_parts, gpu_type)
        if part is not None:
            return part
        profile = _MIG.search(gpu_type)
        if profile is None:
            return 1.0
        return int(profile[1]) / (4 if profile.groups() in _OF_FOUR else _SLICES)

    def of_gpu(self, gpu_type: str) -> float:
        """Return the price of an hour of one whole GPU of this type ("" = any)."""
        price = _by_type(self.gpu_types, gpu_type)
        return self.gpu_hour if price is None else price / self.part_of_gpu(gpu_type)

    def cost(self, gpu_seconds: float, cpu_seconds: float, gpu_type: str = "") -> float:
        """Return the price of this use. `gpu_seconds` count shares as fractions of a GPU."""
        return (gpu_seconds * self.of_gpu(gpu_type) + cpu_seconds * self.cpu_hour) / _HOUR_S

    def __str__(self) -> str:
        if not self.is_set:
            return "none"
        prices = [("GPU", self.gpu_hour), ("CPU", self.cpu_hour), *sorted(self.gpu_types.items())]
        said = ", ".join(f"{name} {price:g}" for name, price in prices if price)
        return f"{said} {self.currency} an hour" if self.currency else f"{said} an hour"


def _by_type(values: Mapping[str, float], gpu_type: str) -> float | None:
    wanted = gpu_type.lower()
    return next((value for name, value in values.items() if name.lower() == wanted), None)

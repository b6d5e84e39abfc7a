"""The prices of an hour of a GPU and of a CPU, as a site sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices in `currency`, which is printed as it is and never converted."""

    currency: str = ""
    gpu_hour: float = 0.0
    """For GPUs whose type is not among `gpu_types`, or was not requested."""
    cpu_hour: float = 0.0
    gpu_types: Mapping[str, float] = field(default_factory=dict)
    """Type → price; upper and lower case do not matter."""

    @property
    def is_set(self) -> bool:
        """Whether there is any price. Without one, reports have no column for costs."""
        return bool(self.gpu_hour or self.cpu_hour or any(self.gpu_types.values()))

    def of_gpu(self, gpu_type: str) -> float:
        """Return the price of an hour of one GPU of this type ("" = any)."""
        wanted = gpu_type.lower()
        return next((price for name, price in self.gpu_types.items() if name.lower() == wanted), self.gpu_hour)

    def cost(self, gpu_seconds: float, cpu_seconds: float, gpu_type: str = "") -> float:
        """Return the price of this use."""
        return (gpu_seconds * self.of_gpu(gpu_type) + cpu_seconds * self.cpu_hour) / _HOUR_S

    def __str__(self) -> str:
        if not self.is_set:
            return "none"
        prices = [("GPU", self.gpu_hour), ("CPU", self.cpu_hour), *sorted(self.gpu_types.items())]
        said = ", ".join(f"{name} {price:g}" for name, price in prices if price)
        return f"{said} {self.currency} an hour" if self.currency else f"{said} an hour"

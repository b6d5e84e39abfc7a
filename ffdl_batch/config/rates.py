"""``[rates]`` of the configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ffdl_batch.domain.metrics.rates import Rates

_LONGEST_CURRENCY = 12


def read_rates(table: Mapping[str, Any], origins: Mapping[str, str]) -> Rates:
    """The prices of a merged table; `origins` maps ``rates.<key>`` to the file that it is from. Raises ValueError with
    file and key."""
    known = [part.name for part in fields(Rates)]
    for key, value in table.items():
        place = f"{origins.get(f'rates.{key}', 'rates')}: rates.{key}"
        if key not in known:
            raise ValueError(f"{place} is no key; known are {', '.join(known)}")
        if key == "currency":
            if not isinstance(value, str) or len(value) > _LONGEST_CURRENCY or not value.isprintable():
                raise ValueError(f"{place} must be a short text, as EUR, not {value!r}")
        elif key == "gpu_types":
            if not isinstance(value, dict):
                raise ValueError(f"{place} must be a table of GPU types, as {{ a100 = 2.5 }}, not {value!r}")
            for name, price in value.items():
                _check_price(f"{place}.{name}", price)
            if len({name.lower() for name in value}) != len(value):
                raise ValueError(f"{place} names a GPU type twice; upper and lower case are the same type")
        else:
            _check_price(place, value)
    prices = {name: float(price) for name, price in table.get("gpu_types", {}).items()}
    return Rates(
        table.get("currency", ""), float(table.get("gpu_hour", 0)), float(table.get("cpu_hour", 0)), gpu_types=prices
    )


def _check_price(place: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{place} must be the price of an hour, 0 or above, not {value!r}")

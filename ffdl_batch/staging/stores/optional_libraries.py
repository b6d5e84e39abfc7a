"""Libraries that an extra of ffdl-batch brings, imported when a task needs them."""

from __future__ import annotations

import importlib
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.staging.faults import Fault


def library(module: str, extra: str) -> Any:
    """The module. Raises Fault where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Fault(FaultClass.LIBRARY, f"{module} is not installed here, which the extra [{extra}] brings") from error

"""Deep-learning training jobs from one manifest on Slurm, Kubernetes or this machine.

``ffdl_batch.Client`` is the typed Python client, and ``ffdl_batch.AsyncClient`` the same for asyncio. They are imported
on first use, so that programs which need only the version or one of the small modules below start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffdl_batch.client import AsyncClient as AsyncClient
    from ffdl_batch.client import Client as Client
    from ffdl_batch.client import Manifest as Manifest
    from ffdl_batch.client import SubmissionWarning as SubmissionWarning

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Manifest", "SubmissionWarning", "__version__"]


def __getattr__(name: str) -> object:
    """Import a public name of the client on first use (PEP 562)."""
    if name in __all__:
        return getattr(import_module("ffdl_batch.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

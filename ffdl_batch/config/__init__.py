"""The merged configuration of a site, a user and a directory; standard library only, for the fast commands.

The reader of configuration files is imported on first use (PEP 562): :mod:`ffdl_batch.config.daemon_location`, which
every command uses, does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffdl_batch.config.load import ConfigError as ConfigError
    from ffdl_batch.config.load import load_settings as load_settings
    from ffdl_batch.config.settings import Settings as Settings

__all__ = ["ConfigError", "Settings", "load_settings"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from ffdl_batch.config import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

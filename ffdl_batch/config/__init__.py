"""The configuration of a site, a user and a directory, merged; standard library only, for the fast commands.

The reader of configuration files is imported when it is first asked for (PEP 562): finding the daemon, by
:mod:`ffdl_batch.config.daemon_location`, needs none of it and is on the way of every command.
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

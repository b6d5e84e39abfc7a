"""The configuration of a site, a user and a directory, merged; standard library only, for the fast commands."""

from ffdl_batch.config.load import ConfigError, load_settings
from ffdl_batch.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load_settings"]

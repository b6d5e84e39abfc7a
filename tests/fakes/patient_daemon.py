"""The real ffdl-submitd, on a machine that does much else: it asks a job's stores for as long as a test waits, where
six seconds may be over before a process has begun to. Run as a module.

Who may still be at work on what a job left is waited for for a day, so that what a test sees was not waited for.
"""

from __future__ import annotations

import sys

from ffdl_batch.config import Settings
from ffdl_batch.daemon.main import main
from ffdl_batch.daemon.platform import Platform, open_platform
from ffdl_batch.services.data import controller_fence, data_store_checks
from ffdl_batch.services.data.data_store_checks import StoreChecks
from tests.fakes.substitution import substitute


def opener(settings: Settings) -> Platform:
    """The platform of this installation, whose stores have time."""
    platform = open_platform(settings)
    platform.store_checks = StoreChecks(limit_s=100.0)
    return platform


if __name__ == "__main__":
    substitute(data_store_checks, CONNECTION_S="60")
    substitute(controller_fence, STILL_ALIVE_S=86_400.0)
    sys.exit(main(opener=opener))

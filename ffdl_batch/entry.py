"""Console scripts. They catch errors while modules are imported, and when the process has no resources left.

:mod:`ffdl_batch.exit_handling` reports a command's own errors. This module handles Ctrl-C during imports, and too
little memory or too few descriptors to import or to report anything. It imports only modules that define constants.
"""

from __future__ import annotations

import os
from importlib import import_module

from ffdl_batch.host.resource_exhaustion import explain_lack

INTERRUPTED, TRY_AGAIN = 130, 75
"""As in :class:`ffdl_batch.domain.exit_codes.ExitCode`, whose import might fail."""
_STDERR = 2


def ffdl() -> None:
    """Run the console script ``ffdl``."""
    run("ffdl", "ffdl_batch.cli.main")


def ffdl_submit() -> None:
    """Run the console script ``ffdl-submit``."""
    run("ffdl-submit", "ffdl_batch.cli.commands.submit")


def ffdl_admin() -> None:
    """Run the console script ``ffdl-admin``."""
    run("ffdl-admin", "ffdl_batch.admin.main")


def ffdl_submitd() -> int:
    """Run the console script ``ffdl-submitd``, which reports its own errors."""
    return int(import_module("ffdl_batch.daemon.main").main())


def ffdl_hub() -> int:
    """Run the console script ``ffdl-hub``, which reports its own errors."""
    return int(import_module("ffdl_batch.site.hub.main").main())


def run(program: str, module: str) -> None:
    """Import the command and run it, which ends with SystemExit. Any other exception ends the process at once."""
    try:
        import_module(module).main()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except Exception as error:
        lack = explain_lack(error)
        if not lack or os.environ.get("FFDL_DEBUG") == "1":
            raise
        os.write(_STDERR, f"{program}: {lack}\n".encode())
        os._exit(TRY_AGAIN)  # an orderly end would need what there is not

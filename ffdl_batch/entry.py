"""The commands' first lines and their last: no traceback before they are imported, and none when nothing is left.

What a command says of its own errors is :mod:`ffdl_batch.cli.exit_handling`'s and
:mod:`ffdl_batch.admin.exit_handling`'s. This here is for Ctrl-C while modules are imported, and for too little memory
or too few descriptors even to import or to say so. Nothing is imported that does more than define constants.
"""

from __future__ import annotations

import os
from importlib import import_module

from ffdl_batch.host.resource_exhaustion import explain_lack

INTERRUPTED, TRY_AGAIN = 130, 75
"""As in :class:`ffdl_batch.domain.exit_codes.ExitCode`, which may be one import too many."""
_STDERR = 2


def ffdl() -> None:
    """The console script ``ffdl``."""
    run("ffdl", "ffdl_batch.cli.main")


def ffdl_submit() -> None:
    """The console script ``ffdl-submit``."""
    run("ffdl-submit", "ffdl_batch.cli.commands.submit")


def ffdl_admin() -> None:
    """The console script ``ffdl-admin``."""
    run("ffdl-admin", "ffdl_batch.admin.main")


def ffdl_submitd() -> int:
    """Run the console script ``ffdl-submitd``, which reports its own errors."""
    return int(import_module("ffdl_batch.daemon.main").main())


def run(program: str, module: str) -> None:
    """Import the command and run it, which ends with SystemExit; whatever else gets here ends it without more ado."""
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

"""Return the name of this machine, and argv that start this controller's program again."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffdl_batch.domain.launch.launch_file import LaunchFile

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from ffdl_batch.controller.__main__ import main; sys.exit(main())"
)


def machine_of(launch: LaunchFile) -> str:
    """Return the name of this node."""
    return os.environ.get(launch.host.machine, "") or os.uname().nodename


def controller_path() -> str:
    """Return the path of the zipapp, or of the directory that contains the package."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def own_argv() -> list[str]:
    """Return the argv that starts this program with this interpreter. Arguments follow it."""
    flags = [flag for flag, on in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if on]
    path = controller_path()
    if os.path.isfile(path):
        return [sys.executable, *flags, path]
    return [sys.executable, *flags, "-c", _START, path]


def module_argv(module: str) -> list[str]:
    """Return the argv that runs ``main(arguments)`` of one module without loading the rest. Arguments follow it."""
    start = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; sys.exit(main(sys.argv[2:]))"
    return [sys.executable, "-I", "-S", "-c", start, controller_path()]

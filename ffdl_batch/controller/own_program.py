"""Where this controller is: its machine, and its code, so that it can start another one of itself."""

from __future__ import annotations

import os
import sys
from typing import List

from ffdl_batch.domain.launch.launch_file import LaunchFile

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from ffdl_batch.controller.__main__ import main; sys.exit(main())"
)
VICTIM = "--victim"
"""Option of ``become``."""


def machine_of(launch: LaunchFile) -> str:
    """What this node is called."""
    return os.environ.get(launch.host.machine, "") or os.uname().nodename


def controller_path() -> str:
    """The zipapp, or the directory that holds the package."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def own_argv() -> List[str]:
    """The argv that starts this very controller with this very interpreter; arguments follow it."""
    flags = [flag for flag, on in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if on]
    path = controller_path()
    if os.path.isfile(path):
        return [sys.executable, *flags, path]
    return [sys.executable, *flags, "-c", _START, path]


def module_argv(module: str) -> List[str]:
    """The argv that runs ``main(arguments)`` of a module of this controller, and loads no more; arguments follow it."""
    start = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; sys.exit(main(sys.argv[2:]))"
    return [sys.executable, "-I", "-S", "-c", start, controller_path()]


def starter_argv(*options: str) -> List[str]:
    """Return the argv of a program that releases the signals that this process holds and becomes the command after it.
    `options` are those of ``become``."""
    path = controller_path()
    code = [path] if os.path.isfile(path) else ["-c", _START, path]
    return [sys.executable, "-I", "-S", *code, "become", *options, "--"]

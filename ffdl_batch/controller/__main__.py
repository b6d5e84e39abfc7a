"""Run a command of ``ffdl-controller``: head, node, upload, pod, stand-in, attach, isolate, probe-isolation.

Users do not start it. Each command loads only its own modules.
"""

from __future__ import annotations

import sys
from importlib import import_module

_MODULES = {
    "attach": "ffdl_batch.controller.attach.helper",
    "isolate": "ffdl_batch.controller.loopback_namespace",
    "pod": "ffdl_batch.controller.pod.entry",
    "stand-in": "ffdl_batch.controller.pod.learner_proxy",
}
"""Each has ``main(arguments)``; the other commands are those of :mod:`ffdl_batch.controller.attempt_commands`."""


def main() -> int:
    """Run one command. Return the exit code."""
    words = sys.argv[1:]
    if words[:1] != ["isolate"]:  # its program is the learner's soon, which must not have this name
        from ffdl_batch.host.processes import name_process

        name_process()
    if words and words[0] in _MODULES:
        status: int = import_module(_MODULES[words[0]]).main(words[1:])
        return status
    from ffdl_batch.controller.attempt_commands import main as attempt

    return attempt(words)


if __name__ == "__main__":
    sys.exit(main())

"""The argv that runs a learner as a plain process, with or without a network of its own."""

from __future__ import annotations

from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.runtimes.learner_contract import SHELL


def bare_argv(shell: tuple[str, ...] = SHELL) -> tuple[str, ...]:
    """A process on the host's network."""
    return tuple(literal(part) for part in shell)


def isolated_argv(controller: tuple[str, ...], shell: tuple[str, ...] = SHELL) -> tuple[str, ...]:
    """A process in a user and network namespace of its own, where only loopback exists.

    `controller` is the argv that starts the controller (interpreter included); its ``isolate`` command makes the
    namespaces, drops all capabilities and becomes the learner. It fails rather than run without them.
    """
    return (*(literal(part) for part in controller), "isolate", "--", *bare_argv(shell))

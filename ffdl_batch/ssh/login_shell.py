"""Commands on a host: as its user's own shell would run them after a login, and what they are called by. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_LOGIN = (
    'case "${SHELL##*/}" in bash|dash|fish|ksh*|mksh|sh|zsh) exec "$SHELL" -l -c "$0";; '
    'csh|tcsh) exec "$SHELL" -c "$0";; *) exec /bin/sh -l -c "$0";; esac'
)
"""Modules and paths of a site come with the login; without them a daemon that is started there would see no Slurm.
tcsh takes -l alone only, and reads its ~/.tcshrc in any case."""


def at_login(words: Sequence[str]) -> str:
    """The line for the host's shell, whichever that is, that runs `words` as after a login."""
    return f"exec /bin/sh -c {shlex.quote(_LOGIN)} {shlex.quote('exec ' + shlex.join(words))}"

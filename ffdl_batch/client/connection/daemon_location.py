"""Where the daemon's socket and the state directory are, for the client. Looks, checks, creates nothing.

The rules are :mod:`ffdl_batch.config.daemon_location`'s, shared with the daemon; here their refusals become the
client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import PlaceRefused, SocketPlace, socket_place
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.config import Settings

__all__ = ["SocketPlace", "locate_socket", "locate_state_dir", "read_settings"]


def locate_socket(environ: Mapping[str, str], *, tmp: Path = Path("/tmp")) -> SocketPlace:  # noqa: S108
    """The socket to try first; raises :class:`DaemonUnreachable` where its directory cannot be trusted."""
    try:
        return socket_place(environ, tmp=tmp)
    except PlaceRefused as refusal:
        raise DaemonUnreachable(str(refusal), refusal.cure, refusal.exit_code) from refusal


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings that a daemon of this caller has, or would have: without what counts for one command only.

    Raises :class:`DaemonUnreachable` (exit 78) for a configuration that cannot be read.
    """
    from ffdl_batch.config.fingerprint import for_daemon
    from ffdl_batch.config.load import ConfigError, load_settings

    try:
        return load_settings(environ=for_daemon(environ))
    except (ConfigError, OSError) as error:
        raise DaemonUnreachable(f"the configuration cannot be used: {error}", "", ExitCode.BAD_MANIFEST) from error


def locate_state_dir(environ: Mapping[str, str]) -> Path:
    """``$FFDL_STATE_DIR``, else the configuration's, else ``$XDG_STATE_HOME/ffdl``, else ``~/.local/state/ffdl``.

    HOME comes from the password database where it is unset (cron). Raises as :func:`read_settings`.
    """
    return Path(read_settings(environ).state_dir)

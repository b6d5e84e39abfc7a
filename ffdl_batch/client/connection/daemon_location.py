"""Locates the daemon for the client: the host that commands go to, the socket, and the state directory.

It only reads and checks. The rules are shared with the daemon (:mod:`ffdl_batch.config.daemon_location`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import PlaceRefused, SocketPlace, socket_place
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import base_directory

if TYPE_CHECKING:
    from ffdl_batch.config import Settings

PROGRAM = "ffdl"
"""The name of the program, unless the configuration names another."""
HERE = "--host="
"""The first option of every command on the host, so that its own configuration does not send it to another host."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A host, and how to run ffdl there."""

    host: str
    program: str = PROGRAM
    state_dir: str = ""
    """The state directory; "" for that of the host's configuration."""

    def words(self, *words: str) -> list[str]:
        """Return the argument list that runs one of its commands."""
        environ = ["env", f"FFDL_STATE_DIR={self.state_dir}"] if self.state_dir else []
        return [*environ, self.program, HERE, *words]


def choose_place(given: str | None, environ: Mapping[str, str], settings: Settings) -> HostPlace | None:
    """Return the host; None for this machine, also if "" is given. Pure."""
    host = given if given is not None else environ.get("FFDL_HOST") or settings.host
    return HostPlace(host, environ.get("FFDL_HOST_PROGRAM") or settings.host_program) if host else None


def locate_socket(environ: Mapping[str, str], *, tmp: Path = Path("/tmp")) -> SocketPlace:  # noqa: S108
    """Return the socket to try first. Raises :class:`DaemonUnreachable` if its directory cannot be trusted."""
    try:
        return socket_place(environ, tmp=tmp)
    except PlaceRefused as refusal:
        raise DaemonUnreachable.because(refusal) from refusal


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of a daemon of this caller, without those that apply to one command only.

    Raises :class:`DaemonUnreachable` (exit 78) for a configuration that cannot be read.
    """
    from ffdl_batch.config.fingerprint import for_daemon
    from ffdl_batch.config.load import ConfigError, load_settings

    try:
        return load_settings(environ=for_daemon(environ))
    except (ConfigError, OSError) as error:
        raise DaemonUnreachable(f"the configuration cannot be used: {error}", "", ExitCode.BAD_MANIFEST) from error


def locate_state_dir(environ: Mapping[str, str]) -> Path:
    """Return ``$FFDL_STATE_DIR``, else that of the configuration, else ``$XDG_STATE_HOME/ffdl``, else
    ``~/.local/state/ffdl``.

    HOME is read from the password database if it is unset (cron). Raises as :func:`read_settings`.
    """
    return Path(read_settings(environ).state_dir)


def logins_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file with the tokens of ``ffdl login``. Raises DaemonUnreachable if HOME is not known."""
    try:
        config = base_directory(environ, "XDG_CONFIG_HOME", ".config")
    except FileNotFoundError as error:
        raise DaemonUnreachable(str(error), "", ExitCode.BAD_MANIFEST) from None
    return Path(config) / "ffdl" / "tokens.toml"

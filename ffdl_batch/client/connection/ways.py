"""Decides how to reach the daemon: through a login node, a hub, or this host's spawner, or as a personal daemon.

The nearest one that is named wins; docs/decisions/0017-hub.md has the order.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Union

from ffdl_batch.client.connection.daemon_location import HostPlace, choose_place, locate_socket, logins_file
from ffdl_batch.client.connection.daemon_process import find_holder
from ffdl_batch.client.connection.daemon_settings import describe_daemon
from ffdl_batch.client.connection.http_client import Channel, Request, Wire
from ffdl_batch.client.connection.own_socket import connect
from ffdl_batch.client.connection.site_daemon import SitePlace, find_site
from ffdl_batch.client.errors import ClientError, DaemonUnreachable
from ffdl_batch.config.daemon_location import LOCK_NAME, Holder, Machine, SocketPlace
from ffdl_batch.config.load import SITE_FILES
from ffdl_batch.config.settings import database_file
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.client.connection.hub import HubPlace
    from ffdl_batch.config import Settings


@dataclass(frozen=True, slots=True)
class HubSocket:
    """The socket of the hub on its own host. The kernel identifies operators and auditors there, without a token."""

    path: Path

    @property
    def url(self) -> str:
        """The place of the hub in messages."""
        return str(self.path)

    host = url

    def dial(self) -> Channel:
        """Connect. Raises DaemonUnreachable."""
        connected = connect(SocketPlace(self.path, named=True))
        if connected is None:
            raise DaemonUnreachable(f"the hub does not answer at {self.path}", "try again later")
        return connected


Way = Union[HostPlace, "HubPlace", HubSocket, SitePlace, None]
"""None is a personal daemon of this machine."""
HUB_VARIABLE = "FFDL_HUB"
HUB_SOCKET_VARIABLE = "FFDL_HUB_SOCKET"
_HUB_SOCKET = "/run/ffdl-hub/hub.sock"
_HEALTH_S = 10.0


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller specifies in addition to environment and configuration."""

    host: str | None = None
    """As --host; "" = no login node."""
    is_personal: bool = False
    """Whether a socket or a state directory is given."""
    is_of_others: bool = False
    """Whether other users' jobs are meant, for operators and auditors. Only a hub can reach other users' daemons."""


def choose_way(
    given: Given,
    environ: Mapping[str, str],
    settings: Settings,
    machine: Callable[[], Machine],
    report: Callable[[str], None],
) -> Way:
    """Return the way to the daemon. `report` gets one line if a personal daemon runs as well as a site's.

    Raises DaemonUnreachable for an invalid address, for a file of tokens that others can read, and for other users'
    jobs if there is no hub.
    """
    host = None if given.host is None and given.is_personal else choose_place(given.host, environ, settings)
    if given.is_of_others:
        return _hub_for_operators(host, environ, settings)
    if host is not None or (given.host is None and given.is_personal):
        return host
    if environ.get("FFDL_SOCKET") or environ.get("FFDL_STATE_DIR"):
        return None
    if environ.get(HUB_VARIABLE):
        return find_hub(environ, settings)
    if settings.origins.get("state_dir", str(SITE_FILES[0])) not in map(str, SITE_FILES):
        return None
    site = find_site(environ, report)
    hub = None if site else find_hub(environ, settings)
    if hub is not None and hub.token:  # the user has logged in
        return hub
    if (site and not _is_taken_over(site)) or hub:
        return None if _is_personal_used(environ, settings, machine, report) else site or hub
    return site


def _is_taken_over(site: SitePlace) -> bool:
    """Return whether the site's daemon would start for the first time, and take over the jobs of a personal one."""
    return not database_file(str(site.state_dir)).exists()


def find_hub(environ: Mapping[str, str], settings: Settings) -> HubPlace | None:
    """Return the hub of $FFDL_HUB, else of the configuration, else of the last login; None if $FFDL_HUB is empty, or
    none of them names a hub."""
    named = environ.get(HUB_VARIABLE)
    if named == "" or not (named or settings.hub_url or os.path.lexists(logins_file(environ))):
        return None
    from ffdl_batch.client.connection.logins import read_logins

    logins = read_logins(environ)
    url = named or settings.hub_url or logins.newest
    return logins.place(url) if url else None


def _hub_for_operators(host: HostPlace | None, environ: Mapping[str, str], settings: Settings) -> HubPlace | HubSocket:
    here = Path(environ.get(HUB_SOCKET_VARIABLE) or _HUB_SOCKET)
    if host is None and not environ.get(HUB_VARIABLE) and here.is_socket():
        return HubSocket(here)
    hub = None if host else find_hub(environ, settings)
    if hub is None:
        via = f"not through the login node {host.host}" if host else "and no hub is configured"
        raise DaemonUnreachable(
            f"--site and --user work only through the site's hub, {via}",
            "log in to it: ffdl login https://HUB" + ("; then leave out --host" if host else ""),
            ExitCode.USAGE if host else ExitCode.UNAVAILABLE,
        )
    return hub


def _is_personal_used(
    environ: Mapping[str, str], settings: Settings, machine: Callable[[], Machine], report: Callable[[str], None]
) -> bool:
    """Return whether a personal daemon of the user runs here and has live jobs; `report` gets the daemon's kind."""
    state_dir = Path(settings.state_dir)
    try:
        found = find_holder(state_dir, machine())
    except DaemonUnreachable as error:
        report(f"using the daemon of this site; it is unknown whether a personal one runs: {error}")
        return False
    if found is None:
        return False
    lock, holder = found
    see_jobs = f"its jobs: FFDL_STATE_DIR={state_dir} ffdl list"
    if holder is Holder.ELSEWHERE:
        report(
            f"using the daemon of this site; your personal one may run on {lock.host}; {see_jobs}; if it no longer "
            f"exists: rm {state_dir / LOCK_NAME}"
        )
        return False
    name, live = describe_daemon(lock), _count_live_jobs(lock.socket or str(locate_socket(environ).path), lock.pid)
    if live == 0:
        report(f"using the daemon of this site; your personal one ({name}) has no live jobs; {see_jobs}")
        return False
    jobs = "may have live jobs" if live is None else f"has {live} live job{'' if live == 1 else 's'}"
    report(
        f"using your personal daemon ({name}), because it {jobs}; commands use the daemon of this site when these "
        "have ended, or after `ffdl daemon stop` (jobs continue; to see them then: "
        f"FFDL_STATE_DIR={state_dir} ffdl list)"
    )
    return True


@functools.cache  # one answer for a process, so that its requests do not go to different daemons
def _count_live_jobs(path: str, _pid: int) -> int | None:
    """Return the number of live jobs of the personal daemon at a socket; None if it is unknown."""
    connected = connect(SocketPlace(Path(path), named=False))
    if connected is None:
        return None
    wire = Wire(lambda: connected)
    try:
        count = wire.ask(Request("GET", "/api/v1/health", timeout_s=_HEALTH_S)).get("live_jobs")
    except ClientError:
        return None
    finally:
        wire.close()
    return count if isinstance(count, int) else None

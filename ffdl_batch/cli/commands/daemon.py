"""``ffdl daemon``: show, stop and restart this user's daemon."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import find_way, open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_line
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.resource_exhaustion import FILES, of_daemon

if TYPE_CHECKING:
    from ffdl_batch.client.connection.daemon_settings import OwnSettings
    from ffdl_batch.client.connection.hub import HubPlace
    from ffdl_batch.client.connection.site_daemon import SitePlace
    from ffdl_batch.domain.daemon_health import BackendHealth, Health

_PATIENCE_S = 10.0
"""How long `status` waits for an answer. A working daemon answers at once."""

_FEW_FILES = 256
"""With fewer descriptors a daemon may run out of them: for files, connections, and pipes of its child processes."""


@click.group()
def daemon() -> None:
    """Manage your daemon. It starts when a command needs it and exits when no job is live. Jobs run without it."""


@daemon.command()
@json_option()
def status(as_json: bool) -> int:
    """Show whether a daemon runs, since when, and whether its settings are those of this shell.

    Exit code 1: none runs; 75: one runs and does not answer.
    """
    from ffdl_batch.client.connection.daemon_process import find_holder
    from ffdl_batch.client.connection.daemon_settings import describe_daemon, own_settings
    from ffdl_batch.config.daemon_location import LOG_NAME, Holder

    if (place := _site_or_hub()) is not None:
        return _site_status(place, as_json=as_json)
    own = own_settings(os.environ)
    found = find_holder(own.state_dir)
    if found is not None and found[1] is Holder.ELSEWHERE:
        raise Stop(
            ExitCode.UNAVAILABLE, f"your daemon is {describe_daemon(found[0])}; ssh {found[0].host} ffdl daemon status"
        )
    health = _health()
    if health is None and found is not None:
        raise Stop(
            ExitCode.TRY_AGAIN,
            f"your daemon is {describe_daemon(found[0])}, and does not answer; try again, or end it with: ffdl daemon "
            f"stop (running jobs continue); its log is {own.state_dir / LOG_NAME}",
        )
    differs = own.differ_from(found[0]) if health and found and health.pid == found[0].pid else None
    if as_json:
        print_json({"running": health is not None, "daemon": health, "differs": differs or ""})
    elif health is None:
        click.echo("no daemon runs; the next command that needs one starts it")
    else:
        is_proven = found is not None and health.pid == found[0].pid
        _print(health, own, found[0].socket if found else "", differs or "")
        print_line("Open files", _describe_descriptors(health.pid) if is_proven else "")
    return ExitCode.OK if health else ExitCode.FAILED


def _site_or_hub() -> SitePlace | HubPlace | None:
    """Return the site's way to the daemon; None for a personal daemon of this machine."""
    from ffdl_batch.client.connection.daemon_location import HostPlace
    from ffdl_batch.client.connection.ways import HubSocket

    way = find_way()  # with a login node the command would run there, and a hub's socket is for --user
    return None if isinstance(way, HostPlace | HubSocket) else way


def _site_status(place: SitePlace | HubPlace, *, as_json: bool) -> int:
    """Show the state of a daemon of the site. Its settings are the site's, and are not compared with this shell's."""
    from ffdl_batch.client.connection.site_daemon import SitePlace

    health = _health()
    if as_json:
        way = {"spawner": str(place.spawner)} if isinstance(place, SitePlace) else {"hub": place.url}
        print_json({"running": health is not None, "daemon": health, "differs": "", **way})
    elif health is None:
        click.echo("no daemon runs; the next command that needs one asks the spawner of this host to start it")
    else:
        _print_process(health)
        if isinstance(place, SitePlace):
            print_line("Started by", f"the spawner of this host ({place.spawner})")
            print_line("Socket", str(place.socket))
            _print_files(place.state_dir)
        else:
            print_line("Hub", place.url)
        _print_health(health)
    return ExitCode.OK if health else ExitCode.FAILED


def _health() -> Health | None:
    """Return the daemon's report about itself; None if none answers."""
    from ffdl_batch.client import DaemonUnreachable

    try:
        with open_client(quiet=True, start=False) as client:
            return client.health(_PATIENCE_S)
    except DaemonUnreachable as error:
        if error.problem.exit_code != ExitCode.TRY_AGAIN:
            raise
        return None


def _print(health: Health, own: OwnSettings, socket: str, differs: str) -> None:
    _print_process(health)
    print_line("Socket", socket)
    _print_files(own.state_dir)
    _print_health(health)
    print_line("Settings", differs or "those of this shell")
    if health.settings_problem:
        print_line("Configuration", health.settings_problem)


def _print_process(health: Health) -> None:
    print_line("Daemon", f"process {health.pid} on {health.host}, since {format_time(health.started_at)}")
    print_line("Version", health.version)


def _print_files(state_dir: Path) -> None:
    from ffdl_batch.config.daemon_location import LOG_NAME

    print_line("State directory", str(state_dir))
    print_line("Log", str(state_dir / LOG_NAME))


def _print_health(health: Health) -> None:
    print_line("Live jobs", "not known" if health.live_jobs is None else str(health.live_jobs))
    print_line("Database", _describe_database(health))
    for backend in health.backends:
        print_line("Backend", _describe(backend))


def _describe_descriptors(pid: int) -> str:
    """Return how many files the daemon may open (prlimit(2)), with advice if that is few; "" if it is unknown, as for a
    daemon that has just exited."""
    try:
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    except (ProcessLookupError, PermissionError):
        return ""
    if most == resource.RLIM_INFINITY:
        return "no limit"
    return f"{most} at most" + ("" if most >= _FEW_FILES else f", which is few; {of_daemon(FILES)}")


def _describe_database(health: Health) -> str:
    from ffdl_batch.cli.render.job_messages import describe_database_outage

    outage = health.database_outage
    return health.database if outage is None else f"{health.database}; {describe_database_outage(outage, time.time())}"


def _describe(backend: BackendHealth) -> str:
    from ffdl_batch.cli.render.job_messages import describe_outage

    again = (
        f"; asked again at {format_time(backend.asked_again_at).partition('T')[2]}" if backend.asked_again_at else ""
    )
    outage = describe_outage(backend, time.time())
    detail = outage + again if outage else backend.detail
    return ", ".join(part for part in (f"{backend.name} {backend.version}".strip(), detail) if part)


@daemon.command()
def stop() -> None:
    """Stop the daemon. Jobs continue; the next command starts a daemon, which reads what they did."""
    click.echo(_stop() or "no daemon ran")


@daemon.command()
@click.option("--force", is_flag=True, help="Stop the daemon even if the disk has no space for another one to start.")
def restart(force: bool) -> None:
    """Stop the daemon and start one with the settings of this shell. Jobs continue meanwhile.

    A daemon that a site's spawner starts has the settings of the site and of your configuration files.

    If the disk has no space for a daemon to start, the running one is not stopped (exit code 75), except with --force.
    """
    if ended := _stop(is_replaced=not force):
        click.echo(ended)
    with open_client() as client:
        health = client.health()
    click.echo(f"started process {health.pid} on {health.host}")


@daemon.command()
def metrics() -> None:
    """Print the daemon's metrics in Prometheus' text format: jobs, times, recoveries, response times of schedulers.

    Exit code 1: none runs.
    """
    from ffdl_batch.client import DaemonUnreachable

    _refuse_hub("metrics")
    try:
        with open_client(quiet=True, start=False) as client:
            click.echo(client.figures(), nl=False)
    except DaemonUnreachable as error:
        if error.problem.exit_code == ExitCode.TRY_AGAIN:
            raise
        raise Stop(ExitCode.FAILED, "no daemon runs; the next command that needs one starts it") from None


@daemon.command()
@click.option("--no-forward", is_flag=True, help="Fail if the daemon runs on another host.")
def relay(no_forward: bool) -> None:
    """Connect standard input and output to the daemon's socket. The daemon is started if none runs.

    ffdl itself runs this on a login node, over SSH.
    """
    from ffdl_batch.client.connection.daemon_start import Dialling
    from ffdl_batch.client.connection.host_relay import serve_relay

    warnings: list[str] = []
    dialling = Dialling(report=warnings.append, host="", forwards=not no_forward)
    channel = dialling.dial()
    if channel.login is not None:  # the token stays on this machine
        channel.close()
        cure = f"run `ffdl login {channel.login.url}` on your own machine, and leave out --host"
        raise Stop(ExitCode.UNAVAILABLE, f"this host reaches the daemon through the hub {channel.login.url}; {cure}")
    serve_relay(channel, warnings)


def _refuse_hub(verb: str) -> SitePlace | None:
    """Return the place of this host's spawner, if it starts the daemon. Raises Stop for a daemon behind a hub."""
    from ffdl_batch.client.connection.site_daemon import SitePlace

    place = _site_or_hub()
    if place is None or isinstance(place, SitePlace):
        return place
    raise Stop(
        ExitCode.UNAVAILABLE,
        f"the hub {place.url} does not pass this command on; run it on the hub's host: ffdl daemon {verb}",
    )


def _stop(*, is_replaced: bool = False) -> str:
    """Stop the daemon and describe it; return "" if none ran. With `is_replaced` another one must be able to start."""
    from ffdl_batch.client.connection.daemon_process import stop_daemon
    from ffdl_batch.client.connection.daemon_settings import describe_daemon, own_settings

    if (place := _refuse_hub("restart" if is_replaced else "stop")) is not None:
        from ffdl_batch.client.connection.site_daemon import stop_site_daemon

        pid = stop_site_daemon(place)
        return f"stopped process {pid}, which the spawner of this host had started" if pid else ""
    own = own_settings(os.environ)
    ended = stop_daemon(own.state_dir, next_writes_in=own.written_at_start if is_replaced else ())
    return f"stopped {describe_daemon(ended)}" if ended else ""

"""``ffdl daemon``: show, stop and restart this user's daemon."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_line
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.resource_exhaustion import FILES, of_daemon

if TYPE_CHECKING:
    from ffdl_batch.client.connection.daemon_settings import OwnSettings
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
    from ffdl_batch.config.daemon_location import LOG_NAME

    print_line("Daemon", f"process {health.pid} on {health.host}, since {format_time(health.started_at)}")
    print_line("Version", health.version)
    print_line("Socket", socket)
    print_line("State directory", str(own.state_dir))
    print_line("Log", str(own.state_dir / LOG_NAME))
    print_line("Live jobs", "not known" if health.live_jobs is None else str(health.live_jobs))
    print_line("Database", _describe_database(health))
    for backend in health.backends:
        print_line("Backend", _describe(backend))
    print_line("Settings", differs or "those of this shell")


def _describe_descriptors(pid: int) -> str:
    """Return how many files the daemon may open (prlimit(2)), with advice if that is few; "" if it is not known, as for
    a daemon that has just exited."""
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
    serve_relay(Dialling(report=warnings.append, host="", forwards=not no_forward).dial(), warnings)


def _stop(*, is_replaced: bool = False) -> str:
    """Stop the daemon and describe it; return "" if none ran. With `is_replaced` another one must be able to start."""
    from ffdl_batch.client.connection.daemon_process import stop_daemon
    from ffdl_batch.client.connection.daemon_settings import describe_daemon, own_settings

    own = own_settings(os.environ)
    ended = stop_daemon(own.state_dir, next_writes_in=own.written_at_start if is_replaced else ())
    return f"stopped {describe_daemon(ended)}" if ended else ""

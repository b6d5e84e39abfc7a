"""Implement ``ffdl-admin doctor``: print what would make jobs of the backend fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.users import user_name

if TYPE_CHECKING:
    from ffdl_batch.config import Settings
    from ffdl_batch.domain.examination import Item


@click.command()
@click.option(
    "--nodes",
    default="",
    metavar="LIST|all",
    help="Run a small job on each of these nodes, such as n[1-8],m1, and check them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(nodes: str, as_json: bool) -> int:
    """Find what would make jobs fail, and print which file to change.

    It checks the scheduler's configuration, the file systems of the daemon's directories and, on a compute node, what
    that node can do; root has the node check it again. With --nodes it runs a job of a second on each of these nodes,
    with its own network. A node has half a minute to start the job, and a minute to answer. A busy, drained or down
    node is reported as a note, not examined. One node is examined before the others; if Slurm drains it because its
    prolog failed, the others are not examined. The job also checks whether the staging program starts, and whether data
    stores can be mounted.

    On the host of a site's hub it also checks the site file, the spawner, the hub and its certificate, and as root
    whether the hub's account sees the jobs of all users.

    Each line starts with ok, wrong or note. Exit code 0: nothing is wrong, and all named nodes were examined; 1:
    something is wrong, or the scheduler does not answer; 2: LIST is invalid, or a node does not exist; 69: the backend
    has no checks, or the scheduler's commands are not installed; 75: no fault was found, but named nodes could not be
    examined now; 78: the configuration cannot be used.
    """
    from ffdl_batch.domain.examination import Verdict

    name, items = examine(nodes)
    if as_json:
        rows = [asdict(item) for item in items]
        click.echo(json_text({"schema": 1, "backend": name, "items": rows}, indent=2))
    else:
        for item in items:
            click.echo(f"{item.verdict:<6} {item.about}{': ' if item.text else ''}{item.text}")
    if any(item.verdict is Verdict.WRONG for item in items):
        return ExitCode.FAILED
    return ExitCode.OK if all(item.examined for item in items) else ExitCode.TRY_AGAIN


def examine(nodes: str) -> tuple[str, list[Item]]:
    """Return the name of the backend, and the results of all checks. Raises Stop."""
    from ffdl_batch.admin.site_doctor import examine_site
    from ffdl_batch.config import ConfigError, load_settings
    from ffdl_batch.domain.examination import Item, Verdict
    from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing
    from ffdl_batch.plugins import AdapterContext, create_adapter
    from ffdl_batch.ports.capabilities import Examines

    try:
        settings = load_settings()
        name = settings.effective_backend(os.environ)[0]
        uid = os.getuid()
        context = AdapterContext(settings.jobs_dir, user_name(uid), uid)
        backend = create_adapter(name, settings.backend_settings(name), context, settings.backend_origins(name))
    except (ConfigError, InvalidRequest) as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from error
    items = [*examine_site()]
    try:
        if not isinstance(backend, Examines):
            raise SchedulerMissing(f"the backend {name!r} has nothing that could be examined")
        return name, [*items, *_ticket_items(settings), *backend.examine(nodes, settings.data_mount)]
    except InvalidRequest as error:
        raise Stop(ExitCode.USAGE, str(error)) from error
    except SchedulerMissing as error:
        if not items:
            raise Stop(ExitCode.UNAVAILABLE, str(error)) from error
        return name, [*items, Item("backend", Verdict.NOTE, str(error))]


def _ticket_items(settings: Settings) -> Iterator[Item]:
    """Yield a note for each directory of the daemon that needs a Kerberos ticket, which a daemon has not for long."""
    from ffdl_batch.domain.examination import Item, Verdict
    from ffdl_batch.host.filesystem import needs_ticket

    for name in ("jobs_dir", "state_dir"):
        path = getattr(settings, name)
        if kind := needs_ticket(Path(path)):
            text = (
                f"{path} is on {kind}: the daemon cannot use it when your ticket has expired, and a site's daemon has "
                "no ticket. Use another file system, or see docs/operations.md#kerberos-and-afs"
            )
            yield Item(name, Verdict.NOTE, text)

"""``ffdl setup``: install ffdl on another host."""

from __future__ import annotations

import os
import shlex

import click

from ffdl_batch.domain.exit_codes import ExitCode


@click.command()
@click.argument("host")
@click.option("--directory", metavar="DIR", help="Directory on the host.  [default: ~/.local/share/ffdl-batch]")
@click.option("--python", metavar="PATH", default="", help="Python on the host, 3.11 or newer.")
@click.option("--extras", metavar="NAMES", default="", help="Extras to install, separated by commas.")
@click.option("--offline", is_flag=True, help="Send all packages from here.")
def setup(host: str, directory: str | None, python: str, extras: str, offline: bool) -> int:
    """Install this release of ffdl on HOST, over SSH, into a virtual environment of your own.

    HOST is written as for --host. It needs Python 3.11 or newer. If pip cannot reach a package index there, this
    machine downloads the packages and sends them. To install another release, run its command in the same way. The old
    installation is replaced at the end, and jobs continue.
    """
    from ffdl_batch.client.connection.host_relay import connector_of
    from ffdl_batch.client.setup.host_setup import DIRECTORY, Wanted, set_up

    wanted = Wanted(directory or DIRECTORY, python, extras, offline)
    done = set_up(connector_of(host, os.environ), wanted, lambda text: click.echo(text, err=True))
    click.echo(f"installed {done.program}")
    if done.is_found:
        click.echo(f"try: ffdl --host {host} list")
    else:
        click.echo(
            f"a login shell on the host does not find it; run: export FFDL_HOST_PROGRAM={shlex.quote(done.program)}"
        )
    return ExitCode.OK

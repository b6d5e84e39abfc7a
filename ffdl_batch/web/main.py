"""The program behind ``ffdl web``: ``python -m ffdl_batch.web.main [--tcp PORT] [--host HOST]``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import click

from ffdl_batch.client import AsyncClient, ClientError
from ffdl_batch.client.connection.daemon_start import Dialling
from ffdl_batch.client.stores.job_files import place_of
from ffdl_batch.config.daemon_location import PlaceRefused
from ffdl_batch.daemon.quiet_server import QuietServer, uvicorn_config
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import complain
from ffdl_batch.host.users import user_name
from ffdl_batch.web.access import Keys, address
from ffdl_batch.web.app import create_app
from ffdl_batch.web.server import PageProtocol, listen_tcp, listen_unix

PORT = 8470
"""The port that the printed ssh command uses on the other machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page until SIGINT, SIGTERM or SIGHUP. Return the exit status."""
    parser = argparse.ArgumentParser(prog="ffdl web", add_help=False)
    parser.add_argument("--tcp", type=int)
    parser.add_argument("--host")
    given = parser.parse_args(arguments)
    try:
        asyncio.run(_serve(given.tcp, given.host))
    except (PlaceRefused, ClientError) as error:
        return _fail(error)
    return int(ExitCode.OK)


def _fail(error: PlaceRefused | ClientError) -> int:
    """Report the error; return the exit status."""
    if isinstance(error, ClientError):
        complain(str(error))
        return error.problem.exit_code
    complain(f"{error}; {error.cure}" if error.cure else str(error))
    return error.exit_code


async def _serve(port: int | None, host: str | None) -> None:
    keys = Keys()
    async with AsyncClient(host=host) as client:
        health = await client.health()  # starts the daemon, or says why it cannot be reached
        title = f"{user_name(health.uid)} on {health.host}"
        app = create_app(client, keys, title, lambda: place_of(Dialling(host=host).way(), os.environ))
        server = QuietServer(uvicorn_config(app, PageProtocol, finish_s=1))
        path = None
        if port is None:
            listening, path = listen_unix(dict(os.environ))
            say = _say_unix(keys, os.fspath(path))
        else:
            listening = listen_tcp(port)
            say = _say_tcp(keys, listening)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, server.end)
        click.echo(f"The page of the jobs of {title}. Enter prints a new address, Ctrl-C ends the page.")
        say()
        if sys.stdin is not None and sys.stdin.isatty():
            loop.add_reader(sys.stdin, lambda: sys.stdin.readline() and say())
        try:
            await server.serve(sockets=[listening])
        finally:
            if path is not None:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()


def _say_unix(keys: Keys, path: str) -> Callable[[], None]:
    click.echo(f"On your computer, run:  ssh -N -L {PORT}:{path} {user_name(os.getuid())}@{socket.getfqdn()}")

    def say() -> None:
        click.echo(f"Then open, once:        {address(PORT, keys.new_token())}")

    return say


def _say_tcp(keys: Keys, listening: socket.socket) -> Callable[[], None]:
    def say() -> None:
        click.echo(f"Open, once:  {address(listening.getsockname()[1], keys.new_token())}")

    return say


if __name__ == "__main__":
    raise SystemExit(main())

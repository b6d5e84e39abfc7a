"""``ffdl port-forward``: reach a port of a running learner, such as that of Jupyter or TensorBoard."""

from __future__ import annotations

import sys

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.domain.terminal_text import quoted
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.option_types import WholeNumber

_LAST_PORT = 65535


def _read_ports(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    """Return the local port and that of the learner. Callback of an argument. Raises BadParameter."""
    local, colon, remote = text.partition(":")
    ports = whole_number(local, _LAST_PORT), whole_number(remote if colon else local, _LAST_PORT)
    if ports[0] is None or not ports[1]:
        message = f"{quoted(text)} must be PORT or LOCAL:PORT, such as 8888 or 0:8888"
        raise click.BadParameter(message, context, parameter)
    return ports[0], ports[1]


@click.command()
@click.argument("job_id", metavar="ID")
@click.argument("ports", metavar="[LOCAL:]PORT", callback=_read_ports)
@click.option("--learner", type=WholeNumber(1), default=1, show_default=True, help="Learner, from 1.")
def port_forward(job_id: str, ports: tuple[int, int], learner: int) -> int:
    """Forward a TCP port of this machine to a port of a running learner, until Ctrl-C or until the learner ends.

    Example: ffdl port-forward training-0a1b2c3d4 8888

    Only your own programs on this machine can connect (127.0.0.1). Without LOCAL, the local port has the same number; 0
    selects a free port. The program in the learner can listen on 127.0.0.1, at any network level. The image needs
    python3.
    """
    from ffdl_batch.client.port_forward import forward, listen, request_for

    local, port = ports
    try:
        listener = listen(local)
    except OSError as error:
        cure = f"; to use a free port, run: ffdl port-forward {job_id} 0:{port}"
        raise Stop(ExitCode.UNAVAILABLE, f"cannot listen on port {local}: {error.strerror}{cure}") from error
    with listener:
        with open_client() as client:
            (helper,) = client.open_helpers(job_id, learner)
        with helper:
            helper.begin(request_for(port))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            click.echo(f"Forwarding {address} to port {port} of learner {learner} of {job_id}")
            sys.stdout.flush()
            return forward(helper, listener, lambda why: complain(f"port {port} of learner {learner}: {why}"))

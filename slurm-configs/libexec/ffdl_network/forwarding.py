"""Level `egress` needs a node that forwards packets. Where the node did not, it still does so for nobody but jobs."""

from __future__ import annotations

from pathlib import Path

from . import egress
from .commands import run
from .files import publish
from .settings import Settings

_SWITCH = Path("/proc/sys/net/ipv4/ip_forward")


def ensure(settings: Settings) -> None:
    """Switch IPv4 forwarding on, with the filter first, or put the filter back that somebody removed.

    `<run>/forwarding` says that the filter is to be there: a node that forwarded before is left as it is.
    """
    if not settings.egress_to:
        return
    record, is_on = settings.run / "forwarding", _SWITCH.read_text().strip() != "0"
    if is_on and not (record.exists() and not _is_filtered(settings)):
        return
    settings.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    publish(record, "IPv4 forwarding was off; it is on for jobs of network level egress, and filtered\n")
    run(["nft", "-f", "-"], settings.command_timeout_s, egress.forward_rules())
    if not is_on:
        _SWITCH.write_text("1\n")


def _is_filtered(settings: Settings) -> bool:
    listed = run(["nft", "list", "tables", "ip"], settings.command_timeout_s).splitlines()
    return f"table ip {egress.NODE_TABLE}" in listed

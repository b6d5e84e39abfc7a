"""Enables packet forwarding, which level `egress` needs. A node that did not forward before forwards only for jobs."""

from __future__ import annotations

from pathlib import Path

from . import egress
from .commands import run
from .files import publish
from .settings import Settings

_SWITCH = Path("/proc/sys/net/ipv4/ip_forward")
_RECORD = "forwarding"


def ensure(settings: Settings) -> None:
    """Load the filter and then enable IPv4 forwarding, unless the node already forwards.

    The file `<run>/forwarding` records that this node needs the filter.
    """
    if _SWITCH.read_text().strip() != "0":
        reassert(settings)
        return
    settings.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    publish(
        settings.run / _RECORD, "IPv4 forwarding was off; it is on for jobs of network level egress, and filtered\n"
    )
    _filter(settings)
    _SWITCH.write_text("1\n")


def reassert(settings: Settings) -> list[str]:
    """Restore the filter if it was removed. Return a sentence if it was."""
    if not (settings.run / _RECORD).exists() or _is_filtered(settings):
        return []
    _filter(settings)
    return ["the filter of what this node forwards was gone; it is there again"]


def _filter(settings: Settings) -> None:
    run(["nft", "-f", "-"], settings.command_timeout_s, egress.forward_rules())


def _is_filtered(settings: Settings) -> bool:
    listed = run(["nft", "list", "tables", "ip"], settings.command_timeout_s).splitlines()
    return f"table ip {egress.NODE_TABLE}" in listed

"""Level `egress` needs a node that forwards packets. A node that did not forward before then forwards only for jobs."""

from __future__ import annotations

from pathlib import Path

from . import egress
from .commands import run
from .files import publish
from .settings import Settings

_SWITCH = Path("/proc/sys/net/ipv4/ip_forward")
_RECORD = "forwarding"


def ensure(settings: Settings) -> None:
    """Switch IPv4 forwarding on, with the filter first. `<run>/forwarding` says that the filter is to be there: a node
    that forwarded before is left as it is."""
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
    """Put the filter back where somebody removed it; the sentence that says so."""
    if not (settings.run / _RECORD).exists() or _is_filtered(settings):
        return []
    _filter(settings)
    return ["the filter of what this node forwards was gone; it is there again"]


def _filter(settings: Settings) -> None:
    run(["nft", "-f", "-"], settings.command_timeout_s, egress.forward_rules())


def _is_filtered(settings: Settings) -> bool:
    listed = run(["nft", "list", "tables", "ip"], settings.command_timeout_s).splitlines()
    return f"table ip {egress.NODE_TABLE}" in listed

"""What this node can do, tried and not believed; and the file that tells the rest of the platform."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, NamedTuple

from . import apptainer, slots
from .commands import Trouble, run
from .network import publish
from .settings import Settings

_STALE_AFTER_S = 3600.0


class Item(NamedTuple):
    """One thing that is needed. `wrong` says what to do; "" when all is well."""

    name: str
    wrong: str


def items(settings: Settings) -> list[Item]:
    """Each thing that network level `job` needs."""
    tried: list[tuple[str, Callable[[], None]]] = [
        ("vxlan", lambda: _try_vxlan(settings)),
        ("filter", lambda: _try_filter(settings)),
        ("acl", lambda: _try_acl(settings)),
        ("ports", lambda: look_at_ports(settings)),
    ]
    found = [Item(name, _wrong(action)) for name, action in tried]
    problems = apptainer.missing(settings)
    return [*found, Item("apptainer", "; ".join(problems))]


def refresh(settings: Settings, most_s: float = _STALE_AFTER_S) -> None:
    """Write `<run>/capabilities` where it is older than that, or older than these programs."""
    file = settings.run / "capabilities"
    try:
        written_at = file.stat().st_mtime
    except FileNotFoundError:
        written_at = 0.0
    changed_at = max(Path(__file__).with_name("settings.py").stat().st_mtime, _changed_at(settings.apptainer_conf))
    if written_at <= changed_at or not 0 <= time.time() - written_at < most_s:
        publish_items(settings, items(settings))


def publish_items(settings: Settings, found: list[Item]) -> None:
    """Write the file: `<name>=yes|no`, `network` for all of them, and `problem` for the first that is wrong."""
    wrong = [item.wrong for item in found if item.wrong]
    lines = ["format=1", f"checked_at={int(time.time())}", f"network={'no' if wrong else 'yes'}"]
    lines += ["mechanism=vxlan", f"slots={settings.slots}", f"prefix={settings.prefix}"]
    lines += [f"{item.name}={'no' if item.wrong else 'yes'}" for item in found]
    lines += [f"problem={' '.join(text.split())}" for text in wrong[:1]]
    settings.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    publish(settings.run / "capabilities", "\n".join(lines) + "\n")


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _wrong(action: Callable[[], None]) -> str:
    try:
        action()
    except (Trouble, OSError) as error:
        return str(error)
    return ""


def _try_vxlan(settings: Settings) -> None:
    argv = ["unshare", "--net", "ip", "link", "add", "try", "type", "vxlan", "id", "1", "dstport", "4789"]
    try:
        run(argv, settings.command_timeout_s)
    except Trouble as error:
        raise Trouble(f"{error}: the kernel needs the module vxlan (modprobe vxlan)") from error


def _try_filter(settings: Settings) -> None:
    rule = "add rule inet try input udp dport 4789 @th,96,24 1 drop"
    text = f"add table inet try\nadd chain inet try input {{ type filter hook input priority -300; }}\n{rule}\n"
    try:
        run(["unshare", "--net", "nft", "-f", "-"], settings.command_timeout_s, text)
    except Trouble as error:
        raise Trouble(f"{error}: install nftables, and the kernel's modules nf_tables and nf_tables_inet") from error


def _try_acl(settings: Settings) -> None:
    settings.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = settings.run / f".try-{os.getpid()}"
    directory.mkdir(mode=0o700)
    try:
        slots.admit(directory, 1)
    finally:
        directory.rmdir()


def look_at_ports(settings: Settings) -> None:
    """Trouble: what the packet filter takes for a sign of root is none."""
    file = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    free = int(file.read_text()) if file.exists() else 1024
    if free <= settings.source_ports[1]:
        raise Trouble(
            f"{file} is {free}, so any user may open the ports {settings.source_ports[0]}-{settings.source_ports[1]} "
            "that are to prove that root sent a packet: set it higher (sysctl), or NETWORK_SOURCE_PORTS lower"
        )

"""Makes the device of a job's network with either mechanism, and removes it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Callable

from . import background, layout, secret, vxlan, wireguard
from .commands import Trouble, run
from .layout import Job, Underlay
from .settings import Settings

_PUBLIC_KEYS = 'while read -r key; do printf "%s\\n" "$key" | wg pubkey; done'
"""A shell script, so that keys are not on a command line."""


def overhead_bytes(settings: Settings) -> int:
    """Return the bytes of a packet on the nodes' network that the job's network cannot use."""
    return wireguard.OVERHEAD_BYTES if settings.mechanism == "wireguard" else vxlan.OVERHEAD_BYTES


def guard_rules(job: Job, settings: Settings, underlay: Underlay) -> str:
    """Return the input of nft on the node."""
    mechanism = wireguard if settings.mechanism == "wireguard" else vxlan
    return mechanism.guard_rules(job, settings, underlay)


def inner_rules(job: Job, settings: Settings, more_chains: str) -> str:
    """Return the input of nft in the job's namespace."""
    mechanism = wireguard if settings.mechanism == "wireguard" else vxlan
    return mechanism.inner_rules(job, settings, more_chains)


def make(job: Job, settings: Settings, underlay: Underlay, number: int, after: Callable[[str], None]) -> None:
    """Make the device in the namespace of the slot, with its addresses. `after` gets each completed step."""
    made = _make_wireguard if settings.mechanism == "wireguard" else _make_vxlan
    made(job, settings, underlay, number, after)


def _make_vxlan(job: Job, settings: Settings, underlay: Underlay, number: int, after: Callable[[str], None]) -> None:
    limit_s, net = settings.command_timeout_s, str(settings.namespace(number))
    run(vxlan.device_argv(job, settings, underlay, net), limit_s)
    after("device")
    run(["nsenter", f"--net={net}", "ip", "-batch", "-"], limit_s, vxlan.address_lines(job, settings))
    after("addresses")
    if job.peers:
        run(["nsenter", f"--net={net}", "bridge", "-batch", "-"], limit_s, vxlan.forwarding_lines(job, underlay))
    after("forwarding")


def _make_wireguard(
    job: Job, settings: Settings, underlay: Underlay, number: int, after: Callable[[str], None]
) -> None:
    limit_s, net = settings.command_timeout_s, str(settings.namespace(number))
    name, port = wireguard.device(number), wireguard.port(job, settings)
    text = _configuration(job, settings, underlay)
    after("keys")
    if background.bound(port):
        raise Trouble(
            f"UDP port {port}, which this job has by its number, is taken on this node (ss -lunp); another job has "
            "another one. NETWORK_WIREGUARD_PORTS of values.env are the ports that jobs have"
        )
    pid = _make_device(name, settings, _record(settings, number))
    after("device")
    _configure(name, text, limit_s)
    run(["ip", "-batch", "-"], limit_s, wireguard.moving_lines(number, underlay, net))
    after("moved")
    run(["nsenter", f"--net={net}", "ip", "-batch", "-"], limit_s, wireguard.address_lines(job, settings))
    after("addresses")
    if pid and job.peers:
        background.await_port(pid, port, limit_s)
        after("port")


def _configuration(job: Job, settings: Settings, underlay: Underlay) -> str:
    known, limit_s = secret.read(settings), settings.command_timeout_s
    private = [wireguard.private_key(known, job, rank) for rank in range(len(job.nodes))]
    public = run(["/bin/sh", "-euc", _PUBLIC_KEYS], limit_s, "\n".join([*private, ""])).split()
    if len(public) != len(private):
        raise Trouble(f"wg made {len(public)} public keys of {len(private)}: is wireguard-tools whole on this node?")
    return wireguard.configuration(job, settings, underlay, private[job.rank], public)


def _make_device(name: str, settings: Settings, record: Path) -> int:
    """Make the device. Return the process id of the program that serves it; 0 if the kernel does."""
    try:
        run(["ip", "link", "add", name, "type", "wireguard"], settings.command_timeout_s)
    except Trouble as error:
        if not settings.wireguard_program:
            raise Trouble(f"{error}: {NO_WIREGUARD}") from error
        return background.start(settings.wireguard_program, name, record, settings.command_timeout_s)
    return 0


NO_WIREGUARD = (
    "the kernel needs the module wireguard (modprobe wireguard), or values.env a NETWORK_WIREGUARD_PROGRAM, such as "
    "/usr/bin/wireguard-go of the package wireguard-go"
)


def _configure(name: str, text: str, limit_s: float) -> None:
    """Configure the device. The keys go to standard input of wg, and are removed from its error messages."""
    try:
        run(["wg", "setconf", name, "/proc/self/fd/0"], limit_s, text)
    except Trouble as error:
        said = str(error)
        for word in text.split():
            said = said.replace(word, "...") if word.endswith("=") and len(word) > 1 else said
        raise Trouble(said) from None


def remove_inside(net: Path, settings: Settings) -> None:
    """Remove the device from a namespace, if it exists."""
    listed = run(["nsenter", f"--net={net}", "ip", "-o", "link", "show"], settings.command_timeout_s).splitlines()
    names = {line.split()[1].rstrip(":").partition("@")[0] for line in listed}
    if layout.DEVICE in names:
        run(["nsenter", f"--net={net}", "ip", "link", "del", layout.DEVICE], settings.command_timeout_s)


def remove_outside(settings: Settings, number: int, patience_s: float) -> None:
    """Remove a slot's program, the program's socket, and a device that is still on the node."""
    background.stop(_record(settings, number), patience_s)
    background.remove_socket(background.socket_of(wireguard.device(number)), patience_s)
    _remove_device(wireguard.device(number), settings)


def remove_all_outside(settings: Settings, patience_s: float) -> None:
    """Remove the sockets and devices of all slots, including unknown ones."""
    for path in background.sockets(wireguard.OUTSIDE):
        background.remove_socket(path, patience_s)
    for _, name in socket.if_nameindex():
        if name.startswith(wireguard.OUTSIDE):
            _remove_device(name, settings)


def _remove_device(name: str, settings: Settings) -> None:
    if name in (known for _, known in socket.if_nameindex()):
        run(["ip", "link", "del", name], settings.command_timeout_s)


def _record(settings: Settings, number: int) -> Path:
    return settings.slot(number) / "wireguard"

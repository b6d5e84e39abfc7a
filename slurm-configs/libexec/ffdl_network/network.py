"""Makes and removes a job's network on this node.

Everything that is made can be found by the job's id: the claim of a slot, which is made first and removed last, gives
the slot, and the tables of rules are named after the job. So removing needs no record of the completed steps, and may
be repeated.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Callable

from . import egress, guard, layout, locks, slots, tunnel
from .commands import Trouble, is_installed, run
from .egress import Targets
from .files import publish
from .layout import Job, Underlay
from .settings import Settings

After = Callable[[str], None]
KILL_PATIENCE_S = 5.0
"""Maximum time until killed processes end."""


def create(job: Job, settings: Settings, underlay: Underlay, targets: Targets | None, after: After) -> None:
    """Make the network and publish it to the controller. `after` gets the name of each completed step; `targets` are
    those of level `egress`.

    The user gets access when everything else is made. The facts are written last.
    """
    limit_s, directory = settings.command_timeout_s, settings.job(job.job_id)
    number = slots.claim(settings, job.job_id)
    after("claim")
    net = str(settings.namespace(number))
    inside = ["nsenter", f"--net={net}"]
    _clear(settings, number)  # the claim shows that no other job uses it
    slots.prepare(settings, number)
    after("slot")
    run(["unshare", f"--net={net}", "/bin/sh", "-s"], limit_s, layout.namespace_script())
    after("namespace")
    chains = egress.inner_chains(targets) if targets else ""
    run([*inside, "nft", "-f", "-"], limit_s, tunnel.inner_rules(job, settings, chains))
    after("filter")
    rules = tunnel.guard_rules(job, settings, underlay)
    rules += egress.node_rules(job.job_id, number, settings, targets) if targets else ""
    publish(guard.rules_of(directory), rules, 0o600)
    run(["nft", "-f", "-"], limit_s, rules)
    after("guard")
    tunnel.make(job, settings, underlay, number, after)
    if targets:
        _make_way_out(settings, number, targets, net)
        after("way out")
    slots.admit(settings.slot(number), job.uid)
    after("access")
    names = targets.names if targets else None
    mtu = underlay.inner_mtu(tunnel.overhead_bytes(settings))
    publish(directory / "network", layout.facts(job, settings, mtu, net, names))
    after("facts")


def _make_way_out(settings: Settings, number: int, targets: Targets, net: str) -> None:
    limit_s = settings.command_timeout_s
    run(["ip", "-batch", "-"], limit_s, egress.node_lines(number, settings, net))
    for name, value in egress.node_sysctls(number):
        file = Path("/proc/sys/net", name)
        if file.exists():  # a kernel without IPv6 does not have the file
            file.write_text(f"{value}\n")
    run(["nsenter", f"--net={net}", "ip", "-batch", "-"], limit_s, egress.inside_lines(number, settings, targets))


def remove(job_id: int, settings: Settings, patience_s: float = KILL_PATIENCE_S) -> list[str]:
    """Remove everything of a job on this node except its directory. Return a sentence for each failure."""
    troubles: list[str] = []

    def attempt(action: Callable[[], None]) -> None:
        try:
            action()
        except (Trouble, OSError) as error:
            troubles.append(str(error))

    directory = settings.job(job_id)
    attempt(lambda: (directory / "network").unlink(missing_ok=True))
    mine = [number for number, owner in slots.claims(settings).items() if owner == job_id]
    for number in mine:
        attempt(partial(_clear, settings, number, patience_s))
    if mine:
        attempt(lambda: drop_tables(layout.table_of(job_id), settings))
    for number in mine if not troubles else []:
        attempt(partial(slots.give_back, settings, number))
    return troubles


def forget(job_id: int, settings: Settings) -> None:
    """Remove the job's directory and lock, which are not needed any more. The caller holds the lock."""
    shutil.rmtree(settings.job(job_id), ignore_errors=True)
    locks.remove(job_id, settings)


def drop_tables(name: str, settings: Settings) -> None:
    """Remove the tables of rules with this name. A node without nft has none, but must still release its slots."""
    if not is_installed("nft"):
        return
    lines = [f"{verb} table {family} {name}\n" for family in ("inet", "ip") for verb in ("add", "delete")]
    run(["nft", "-f", "-"], settings.command_timeout_s, "".join(lines))


def drop_way_out(name: str, settings: Settings) -> None:
    """Remove a pair of devices by its device on the node, if it exists."""
    if name in (known for _, known in socket.if_nameindex()):
        run(["ip", "link", "del", name], settings.command_timeout_s)


def _clear(settings: Settings, number: int, patience_s: float = KILL_PATIENCE_S) -> None:
    """Empty a slot: close it, kill its processes, remove the device, then the namespace.

    The device is removed separately, because the namespace exists as long as any process has one of its sockets.
    """
    directory, net = settings.slot(number), settings.namespace(number)
    if not directory.is_dir():
        return
    slots.shut(directory)
    drop_way_out(egress.device(number), settings)
    tunnel.remove_outside(settings, number, patience_s)
    while is_namespace(net):
        alive = _kill_inside(net, patience_s)
        tunnel.remove_inside(net, settings)
        run(["umount", "--lazy", str(net)], settings.command_timeout_s)
        if alive:
            raise Trouble(f"processes {alive} of the job's network do not die; it is cut off")
    net.unlink(missing_ok=True)
    directory.rmdir()


def is_namespace(net: Path) -> bool:
    """Return whether a namespace is mounted on the file."""
    try:
        return net.stat().st_dev != net.parent.stat().st_dev
    except FileNotFoundError:
        return False


def _kill_inside(net: Path, patience_s: float) -> list[int]:
    """Kill every process in the namespace. Return those that are still alive after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        found = _processes_inside(net)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def _processes_inside(net: Path) -> list[int]:
    inside = net.stat()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            of_process = (process / "ns/net").stat()
        except OSError:  # it has ended, or is a zombie
            continue
        if (of_process.st_dev, of_process.st_ino) == (inside.st_dev, inside.st_ino):
            found.append(int(process.name))
    return found

"""Makes and removes a job's network on this node.

Making is a list of steps. Whatever it makes is found again by the job's id alone: the claim of a slot, which is made
first and given back last, says where, and the table of rules is named after the job. So removing needs no record of how
far making came, and may be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Callable, Iterator

from . import layout, slots
from .commands import Trouble, is_installed, run
from .layout import Job, Underlay
from .settings import Settings

After = Callable[[str], None]
_KILL_PATIENCE_S = 5.0
_LOCK_PATIENCE_S = 15.0


@contextlib.contextmanager
def held(job_id: int, settings: Settings, wait_s: float = _LOCK_PATIENCE_S) -> Iterator[None]:
    """Be the only one who makes or removes the job's network: the prolog of a dead slurmd may still be at work when the
    epilog comes, and so may a program that a killed prolog had started, which therefore inherits the lock. Trouble:
    somebody else is, for longer than that."""
    directory = settings.job(job_id)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.set_inheritable(descriptor, True)
    try:
        _lock(descriptor, directory, time.monotonic() + wait_s)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Trouble(f"another prolog or epilog holds {directory}") from error
            time.sleep(0.02)
        else:
            return


def create(job: Job, settings: Settings, underlay: Underlay, after: After) -> None:
    """Make the network and tell the controller. `after` is told the name of each step that is done.

    The job's user is let in when everything else is there; the facts come last.
    """
    limit_s = settings.command_timeout_s
    number = slots.claim(settings, job.job_id)
    after("claim")
    net = str(settings.namespace(number))
    _clear(settings, number)  # the claim says that nobody has it
    slots.prepare(settings, number)
    after("slot")
    run(["unshare", f"--net={net}", "/bin/sh", "-s"], limit_s, layout.namespace_script())
    after("namespace")
    run(["nft", "-f", "-"], limit_s, layout.guard_rules(job, settings, underlay))
    after("guard")
    run(layout.device_argv(job, settings, underlay, net), limit_s)
    after("device")
    run(["nsenter", f"--net={net}", "ip", "-batch", "-"], limit_s, layout.address_lines(job, settings))
    after("addresses")
    if len(job.nodes) > 1:
        run(["nsenter", f"--net={net}", "bridge", "-batch", "-"], limit_s, layout.forwarding_lines(job, underlay))
    after("forwarding")
    slots.admit(settings.slot(number), job.uid)
    after("access")
    publish(settings.job(job.job_id) / "network", layout.facts(job, settings, underlay, net))
    after("facts")


def remove(job_id: int, settings: Settings, patience_s: float = _KILL_PATIENCE_S) -> list[str]:
    """Remove all that a job has on this node, its directory excepted; what could not be done, a sentence each."""
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
        attempt(lambda: drop_table(layout.table_of(job_id), settings))
    for number in mine if not troubles else []:
        attempt(partial(slots.give_back, settings, number))
    return troubles


def forget(job_id: int, settings: Settings) -> None:
    """Remove the job's directory, of which nothing is needed any more."""
    shutil.rmtree(settings.job(job_id), ignore_errors=True)


def publish(path: Path, text: str) -> None:
    """Write a file for everybody to read; it is there as a whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o644)
    new.replace(path)


def tables(settings: Settings) -> list[str]:
    """The jobs' tables of rules that this node has."""
    if not is_installed("nft"):
        return []
    listed = run(["nft", "list", "tables", "inet"], settings.command_timeout_s).split()
    return [word for word in listed if word.startswith("ffdl_") and word[5:].isdigit()]


def drop_table(name: str, settings: Settings) -> None:
    """Remove a table of rules, if it is there. A node without nft has none, and its slots must be given back, too."""
    if not is_installed("nft"):
        return
    run(["nft", "-f", "-"], settings.command_timeout_s, f"add table inet {name}\ndelete table inet {name}\n")


def _clear(settings: Settings, number: int, patience_s: float = _KILL_PATIENCE_S) -> None:
    """Empty a slot: nobody gets in, what is in dies, the device goes, then the namespace.

    The device goes first and by itself, because the namespace lives on for as long as anybody holds a socket of it.
    """
    directory, net = settings.slot(number), settings.namespace(number)
    if not directory.is_dir():
        return
    slots.shut(directory)
    while is_namespace(net):
        alive = _kill_inside(net, patience_s)
        _remove_device(net, settings)
        run(["umount", "--lazy", str(net)], settings.command_timeout_s)
        if alive:
            raise Trouble(f"processes {alive} of the job's network do not die; it is cut off")
    net.unlink(missing_ok=True)
    directory.rmdir()


def is_namespace(net: Path) -> bool:
    """Whether something is mounted over the file."""
    try:
        return net.stat().st_dev != net.parent.stat().st_dev
    except FileNotFoundError:
        return False


def _remove_device(net: Path, settings: Settings) -> None:
    inside = ["nsenter", f"--net={net}", "ip", "-o", "link", "show", "type", "vxlan"]
    if run(inside, settings.command_timeout_s).strip():
        run(["nsenter", f"--net={net}", "ip", "link", "del", layout.DEVICE], settings.command_timeout_s)


def _kill_inside(net: Path, patience_s: float) -> list[int]:
    """Kill every process in the namespace; those that are still there when the patience is over."""
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

"""Implements the program `boot`. Once after each boot, it removes networks of an earlier boot.

It also records what the node can do.

The first of this program and the prologs after a boot removes them, and writes `<run>/booted`. So a restart of the
service does not touch the networks of running jobs, and restores their packet filters if they are missing.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Collection, Sequence

from . import checks, egress, guard, locks, network, settings, slots, tunnel
from .commands import Trouble, status_of
from .files import publish
from .settings import Settings

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def main(argv: Sequence[str]) -> int:
    """Run the program. Return its exit status, and print errors on standard error.

    Status 1: part of a network remains, a filter cannot be checked or restored, or the site's values are wrong. Status
    64: unknown arguments.
    """
    if list(argv) not in ([], ["--force"]):
        print("usage: boot [--force]", file=sys.stderr)
        return 64
    return status_of("boot", lambda: _work(force=bool(argv)))


def _work(force: bool) -> int:
    """Try each part even if another one fails: the file of what the node can do is always rewritten."""
    try:
        site = settings.load()
    except settings.WrongValues as error:
        checks.publish_refusal(error)
        raise

    def clean() -> int:
        left = _clean(site, _all_of(site)) if force else once(site)
        _say(left)
        return 1 if left else 0

    def put_back() -> int:
        looked = guard.reassert(site)
        _say([*looked.again, *looked.gone])
        return 1 if looked.gone else 0

    ends = [status_of("boot", clean), status_of("boot", put_back)]
    checks.publish_state(site, checks.look(site))
    return max(ends)


def _say(texts: Sequence[str]) -> None:
    for text in texts:
        print(f"boot: {text}", file=sys.stderr)


def once(site: Settings) -> list[str]:
    """Remove everything of earlier jobs once after each boot of the node; return what could not be removed."""
    mark, now = site.run / "booted", _BOOT_ID.read_text().strip()
    if _read(mark) == now:
        return []
    with locks.node_held(site):
        if _read(mark) == now:
            return []
        left = _clean(site, {job_id for job_id in _all_of(site) if not _has_just_begun(job_id, site)})
        publish(mark, now + "\n")
        return left


def _read(mark: Path) -> str:
    try:
        return mark.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _all_of(site: Settings) -> set[int]:
    """Return the ids of all jobs that have files or slots on this node."""
    found = {int(path.name[4:]) for path in site.run.glob("job-*") if path.name[4:].isdigit()}
    return found | set(slots.claims(site).values())


def _has_just_begun(job_id: int, site: Settings) -> bool:
    """Return whether the job has only a directory that its hook made since the boot: its prolog has just started."""
    directory = site.job(job_id)
    if job_id in slots.claims(site).values() or (directory / "ended").exists():
        return False
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        return directory.stat().st_mtime > booted_at
    except FileNotFoundError:
        return False


def _clean(site: Settings, jobs: Collection[int]) -> list[str]:
    """Remove all networks, and all other files of these jobs. Return what could not be removed."""
    troubles = []
    for job_id in sorted(jobs):
        left = network.remove(job_id, site)
        troubles += [f"job {job_id}: {text}" for text in left]
        if not left:
            network.forget(job_id, site)
    for drop in (_drop_all_tables, _drop_ways_out, _drop_tunnels):
        try:
            drop(site)
        except (Trouble, OSError) as error:
            troubles.append(str(error))
    return troubles


def _drop_all_tables(site: Settings) -> None:
    for _, name in guard.tables(site):
        network.drop_tables(name, site)


def _drop_ways_out(site: Settings) -> None:
    for _, name in socket.if_nameindex():
        if name.startswith(egress.OUTSIDE):
            network.drop_way_out(name, site)


def _drop_tunnels(site: Settings) -> None:
    tunnel.remove_all_outside(site, network.KILL_PATIENCE_S)

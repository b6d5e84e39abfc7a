"""Restores the rules of jobs in the node's packet filter, which an administrator may have flushed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Collection, NamedTuple

from . import forwarding, layout, locks, slots
from .commands import Trouble, is_installed, run
from .settings import Settings


class Looked(NamedTuple):
    """A sentence for each missing filter: `again` for those that were restored, `gone` for those that were not."""

    again: list[str]
    gone: list[str]


def rules_of(directory: Path) -> Path:
    """Return the path of the input of nft for all rules of a job on this node."""
    return directory / "rules"


def tables(settings: Settings) -> list[tuple[str, str]]:
    """Return family and name of the tables of jobs on this node. Raises Trouble if nft cannot list them."""
    if not is_installed("nft"):
        return []
    try:
        output = run(["nft", "list", "tables"], settings.command_timeout_s)
    except Trouble as error:
        raise Trouble(
            f"{error}: so the packet filters of jobs cannot be checked; mend nftables on this node, then run check"
        ) from error
    listed = (line.split() for line in output.splitlines())
    found = [(words[1], words[2]) for words in listed if len(words) == 3]
    return [(family, name) for family, name in found if name.startswith("ffdl_") and name[5:].isdigit()]


def reassert(settings: Settings) -> Looked:
    """Restore the rules of every job whose tables are missing, and those of the node."""
    owners = set(slots.claims(settings).values())
    there = set(tables(settings)) if owners else set()
    looked = Looked([], [])
    try:
        looked.again.extend(forwarding.reassert(settings))
    except Trouble as error:
        looked.gone.append(f"the filter of what this node forwards cannot be looked at or put back: {error}")
    for job_id in sorted(owners):
        # Trouble: its prolog or epilog is running.
        with contextlib.suppress(Trouble), locks.held(job_id, settings, wait_s=0):
            _reassert_job(job_id, settings, there, looked)
    return looked


def _reassert_job(job_id: int, settings: Settings, there: Collection[tuple[str, str]], looked: Looked) -> None:
    directory, name = settings.job(job_id), layout.table_of(job_id)
    try:
        rules = rules_of(directory).read_text(encoding="utf-8")
    except FileNotFoundError:  # its prolog did not reach this step
        return
    wanted = [(family, name) for family in ("inet", "ip") if f"\ntable {family} {name} {{" in rules]
    if all(table in there for table in wanted) or (directory / "ended").exists():
        return
    try:
        run(["nft", "-f", "-"], settings.command_timeout_s, rules)
    except Trouble as error:
        looked.gone.append(f"the packet filter of job {job_id} is gone and cannot be put back: {error}")
    else:
        looked.again.append(f"the packet filter of job {job_id} was gone; it is there again")

"""How the learners of one node have what is in stores: mounted by this node, or brought into the job's directory.

The first node decides, and the others do as it did: what it brought, all of them see; what it mounted, each mounts. One
that cannot brings it after all, unless that is not wanted.
"""

from __future__ import annotations

from typing import Callable, Iterable, List

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.cache_entries import Entries
from ffdl_batch.controller.data.transfers import LOCK_S, bring_data, check_mountable, tell_loading
from ffdl_batch.controller.mounts.node_mounts import DATA_CODE, Mounting, lacking
from ffdl_batch.domain.data.staging_protocol import Note, Transfer
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind

MOUNTED, STAGED = "mounted", "staged"
OTHERS_S = 24 * 3600.0
"""How long a node that could not mount waits for another one that brings the same."""


class NodeData:
    """What this node has of the launch file's fetches."""

    def __init__(self, launch: LaunchFile, node_rank: int, scratch: str, journal: Journal) -> None:
        self._launch, self._node_rank, self._journal = launch, node_rank, journal
        self.entries = Entries()
        self.mounting = Mounting(launch, node_rank, scratch)

    def have(self, go_on: Callable[[], None]) -> None:
        """On the first node. Raises PhaseFailed, OSError, and what `go_on` raises."""
        mounts = self._launch.mounts
        wanted = () if mounts is None or self._launch.only_stages else mounts.transfers
        for one in mounts.brought if mounts and not self._launch.only_stages else ():
            self._tell(one.transfer, STAGED, _not_mounted(self._launch.fetches[one.transfer], one.why))
        left = set(range(len(self._launch.fetches))) - set(self._mount(wanted, go_on))
        self._bring(sorted(left), LOCK_S, go_on)

    def follow(self, told: Iterable[Event], go_on: Callable[[], None]) -> None:
        """On another node, by what the first one `told`. Raises as `have`."""
        how = {one.fields.get("fetch"): one.fields.get("how") for one in told if one.kind is EventKind.DATA}
        wanted = [number for number in range(len(self._launch.fetches)) if how.get(number) == MOUNTED]
        left = set(wanted) - set(self._mount(wanted, go_on))
        if left:
            self._bring(sorted(left), OTHERS_S, go_on)

    def _mount(self, wanted: Iterable[int], go_on: Callable[[], None]) -> List[int]:
        """Those that are mounted. Raises as `have`."""
        mounts, found = self._launch.mounts, []
        for number in wanted:
            assert mounts is not None
            fetch = self._launch.fetches[number]
            why = lacking()
            if not why:
                check_mountable(self._launch, self._node_rank, fetch, go_on)
                why = self.mounting.mount(number, go_on)
            if why and mounts.must:
                raise PhaseFailed(DATA_CODE, f"{_name(fetch)} cannot be mounted: {why}")
            self._tell(number, MOUNTED if not why else STAGED, _not_mounted(fetch, why) if why else "")
            if not why:
                found.append(number)
        return found

    def _tell(self, number: int, how: str, message: str) -> None:
        text = message or f"{_name(self._launch.fetches[number])} is mounted"
        tell_loading(self._launch, self._node_rank)(Note(text + ("; its data are brought" if message else "")))
        self._journal.append(EventKind.DATA, fetch=number, how=how, message=text)

    def _bring(self, numbers: List[int], wait_s: float, go_on: Callable[[], None]) -> None:
        fetches = [self._launch.fetches[number] for number in numbers]
        bring_data(self._launch, self._node_rank, go_on, self.entries, fetches, wait_s=wait_s)


def _not_mounted(fetch: Transfer, why: str) -> str:
    return f"{_name(fetch)} is not mounted: {why}"


def _name(fetch: Transfer) -> str:
    return "/".join(part for part in (fetch.store.container, fetch.prefix) if part)

"""Load what a node needs before its learners start: the model, an earlier attempt's results, and data.

Data in stores are mounted by each node, or copied into the job's directory. The first node decides, and the others do
the same. A node that cannot mount copies instead, unless the manifest forbids it.
"""

from __future__ import annotations

import os
from typing import Callable, Iterable, List, Optional, Sequence

from ffdl_batch.attempt.directory_tree import roots_of
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.filesystem_retry import is_passing
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.cache_entries import Entries
from ffdl_batch.controller.data.model_unpacking import unpack
from ffdl_batch.controller.data.transfers import LOCK_S, bring_data, check_mountable, loading_reporter
from ffdl_batch.controller.data.tree_copy import UnreadableSource, copy_tree
from ffdl_batch.controller.mounts.node_mounts import DATA_CODE, NodeMounts, lacking
from ffdl_batch.controller.own_program import machine_of
from ffdl_batch.domain.data.staging_protocol import UNREADABLE_CODE, Note, Transfer
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import Event, EventKind
from ffdl_batch.host.permissions import with_denial

MOUNTED, STAGED = "mounted", "staged"
OTHERS_S = 24 * 3600.0
"""Seconds that a node that cannot mount waits for another one that copies the same data."""


class NodeData:
    """The data from stores on this node: mounted or copied."""

    def __init__(self, launch: LaunchFile, node_rank: int, scratch: str, journal: Journal) -> None:
        self._launch, self._node_rank, self._journal = launch, node_rank, journal
        self.entries = Entries()
        self.mounting = NodeMounts(launch, node_rank, scratch)

    def have(self, go_on: Callable[[], None]) -> None:
        """Mount or copy all data, on the first node. Raises PhaseFailed, OSError, and what `go_on` raises."""
        mounts = self._launch.mounts
        wanted = () if mounts is None or self._launch.only_stages else mounts.transfers
        for one in mounts.brought if mounts and not self._launch.only_stages else ():
            self._report(one.transfer, STAGED, _not_mounted(self._launch.fetches[one.transfer], one.why))
        left = set(range(len(self._launch.fetches))) - set(self._mount(wanted, go_on))
        self._bring(sorted(left), LOCK_S, go_on)

    def follow(self, report: Iterable[Event], go_on: Callable[[], None]) -> None:
        """Mount what the first node mounted, according to its events, on another node. Raises as `have`."""
        how = {one.fields.get("fetch"): one.fields.get("how") for one in report if one.kind is EventKind.DATA}
        wanted = [number for number in range(len(self._launch.fetches)) if how.get(number) == MOUNTED]
        left = set(wanted) - set(self._mount(wanted, go_on))
        if left:
            self._bring(sorted(left), OTHERS_S, go_on)

    def _mount(self, wanted: Iterable[int], go_on: Callable[[], None]) -> List[int]:
        """Mount these. Return those that were mounted. Raises as `have`."""
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
            self._report(number, MOUNTED if not why else STAGED, _not_mounted(fetch, why) if why else "")
            if not why:
                found.append(number)
        return found

    def _report(self, number: int, how: str, message: str) -> None:
        text = message or f"{_name(self._launch.fetches[number])} is mounted"
        loading_reporter(self._launch, self._node_rank)(Note(text + ("; its data are copied" if message else "")))
        self._journal.append(EventKind.DATA, fetch=number, how=how, message=text)

    def _bring(self, numbers: List[int], wait_s: float, go_on: Callable[[], None]) -> None:
        fetches = [self._launch.fetches[number] for number in numbers]
        bring_data(self._launch, self._node_rank, go_on, self.entries, fetches, wait_s=wait_s)


def _not_mounted(fetch: Transfer, why: str) -> str:
    return f"{_name(fetch)} is not mounted: {why}"


def _name(fetch: Transfer) -> str:
    return "/".join(part for part in (fetch.store.container, fetch.prefix) if part)


def load_model(launch: LaunchFile, go_on: Callable[[], None]) -> None:
    """Unpack the model, and copy the results of the earlier attempt.

    Raises OSError, ModelRefused, PhaseFailed, and what `go_on` raises.
    """
    attempt = AttemptDir(launch.attempt_dir)
    if launch.model_archive:
        unpack(launch.model_archive, attempt.model)
    if launch.carry and os.path.isdir(launch.carry):
        try:  # a copy, because the earlier attempt's files must not change
            copy_tree(
                launch.carry,
                attempt.results,
                own=launch.job_dir,
                roots=roots_of(launch, launch.carry),
                go_on=go_on,
            )
        except OSError as error:
            if is_passing(error, attempt.path):
                raise
            where = f"{launch.carry} on {os.uname().nodename}"
            code = UNREADABLE_CODE if isinstance(error, UnreadableSource) else "S101"
            message = f"the earlier attempt's results cannot be copied from {where}: {error}"
            raise PhaseFailed(code, with_denial(message, error)) from error


def load_data(launch: LaunchFile, data: NodeData, go_on: Callable[[], None]) -> None:
    """Copy local data, and mount or copy data in stores. Raises OSError, PhaseFailed, and what `go_on` raises."""
    _find(launch, launch.needs_dirs)
    for copy in launch.copies:
        copy_tree(copy.source, copy.target, roots=(copy.source,), go_on=go_on)
    data.have(go_on)


def find_data(launch: LaunchFile) -> None:
    """Check that every data directory can be read. A container runtime's message would not name the cause.

    Raises PhaseFailed, and OSError if a file system does not answer.
    """
    _find(launch, [*launch.needs_dirs, *(fetch.local for fetch in launch.fetches)])


def _find(launch: LaunchFile, paths: Sequence[str]) -> None:
    for path in paths:
        denied: Optional[OSError] = None
        try:
            os.scandir(path).close()
            continue
        except FileNotFoundError:
            what = "does not exist"
        except NotADirectoryError:
            what = "is not a directory"
        except OSError as error:
            if is_passing(error, launch.attempt_dir):
                raise
            what, denied = f"cannot be read ({error.strerror})", error
        claimed = launch.pod.claimed(path) if launch.pod is not None else ""
        where = f" ({claimed})" if claimed else ""
        message = f"data directory {path}{where} {what} on node {machine_of(launch)}"
        raise PhaseFailed("S302", with_denial(message, denied))

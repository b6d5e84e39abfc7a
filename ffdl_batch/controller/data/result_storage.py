"""Store results, logs and the model archive, while learners run and after they have ended.

Storing is idempotent; several nodes may do it at once. A thread of its own uploads while learners run, so a slow store
delays nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Callable, List, Optional, Sequence

from ffdl_batch.attempt.directory_tree import Directories, roots_of
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import touch
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.job_directories import make_shared
from ffdl_batch.controller.data.metric_files import show_metrics
from ffdl_batch.controller.data.model_unpacking import copy_archive
from ffdl_batch.controller.data.transfer_progress import notes_once, onto_errors
from ffdl_batch.controller.data.transfers import STORING, not_kept_reporter, send_logs, send_results, send_while_running
from ffdl_batch.controller.data.tree_copy import continue_always, copy_tree, ignore_note, remove_half_copied
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.host.permissions import umask_set

COPIED = ".log-copy-complete"
"""FfDL's marker file in a stored log directory."""


def store_results(
    launch: LaunchFile,
    go_on: Callable[[], None] = continue_always,
    *,
    node_rank: Optional[int] = None,
    sends: bool = True,
    late: bool = False,
    journal: Optional[Journal] = None,
) -> None:
    """Store $RESULT_DIR in the results store, and the model archive beside it.

    `node_rank` is the node of the calling controller; None if the attempt has ended. With `sends`, results are also
    uploaded to a store that is not a directory. With `late`, a newer attempt may have stored results; newer files stay.
    Links, pipes, sockets and devices that cannot be stored unchanged become events in the `journal`. Raises OSError,
    StagingFailed, and what `go_on` raises.
    """
    note = not_kept_reporter(launch, node_rank or 0, journal) if journal is not None else ignore_note
    stores, attempt = launch.stores, AttemptDir(launch.attempt_dir)
    works: List[Callable[[], None]] = []

    def copied(what: str) -> None:
        sys.stderr.write(f"ffdl-controller: {STORING}: {what}\n")
        note(what)

    def copy_results() -> None:
        make_shared(stores.results, launch)
        copy_tree(
            attempt.results,
            stores.results,
            link=True,
            keep_newer=late,
            own=launch.job_dir,
            roots=roots_of(launch, attempt.results),
            note=copied,
            go_on=go_on,
        )

    if stores.results and not _same(stores.results, attempt.results):
        works.append(copy_results)
    if stores.model and launch.model_archive and not os.path.exists(stores.model):
        works.append(partial(copy_archive, launch.model_archive, stores.model))
    if sends:
        works.append(partial(send_results, launch, node_rank, go_on, note, late=late))
    with umask_set(launch.umask):
        do_each(works)


def store_logs(
    launch: LaunchFile,
    learner_ids: Sequence[int],
    go_on: Callable[[], None] = continue_always,
    *,
    node_rank: Optional[int] = None,
    late: bool = False,
) -> None:
    """Store the logs of these learners in ``learner-<n>/`` of the logs store.

    Those of earlier attempts are stored below it, in ``attempt-<k>/``. With `late`, a newer attempt has the place, and
    this attempt's logs are stored below it, too. Raises OSError, StagingFailed, and what `go_on` raises.
    """
    for number in learner_ids:
        for earlier in range(1, launch.attempt):
            show_metrics(launch, number, JobDir(launch.job_dir).attempt(earlier))
        show_metrics(launch, number)
    works: List[Callable[[], None]] = []
    if launch.stores.logs and not _same(launch.stores.logs, AttemptDir(launch.attempt_dir).logs):
        works += [partial(_copy_logs, launch, number, go_on, late) for number in learner_ids]
    with umask_set(launch.umask):
        do_each([*works, partial(send_logs, launch, node_rank, learner_ids, go_on, late=late)])


def _copy_logs(launch: LaunchFile, number: int, go_on: Callable[[], None], late: bool) -> None:
    """Copy the logs of one learner into a store that is a directory."""
    make_shared(launch.stores.logs, launch)
    attempt = AttemptDir(launch.attempt_dir)
    place = (f"learner-{number}",)  # results are stored there as well, and may have a link of that name
    bring = partial(copy_tree, link=True, own=launch.job_dir, go_on=go_on)
    for earlier in range(1, launch.attempt + (1 if late else 0)):
        source = JobDir(launch.job_dir).attempt(earlier).learner_logs(number)
        if os.path.isdir(source):
            bring(source, launch.stores.logs, (*place, f"attempt-{earlier}"))
    if not late:
        bring(attempt.learner_logs(number), launch.stores.logs, place)
    with Directories(launch.stores.logs, 0o777) as tree:
        try:
            touch(COPIED, 0o666, dir_fd=tree.enter(place))
        except OSError as error:
            error.filename = tree.path(*place, COPIED)
            raise


def do_each(works: Sequence[Callable[[], None]]) -> None:
    """Do all of these, even if one fails, so that a store that fails does not affect the others.

    At the end, raises the first OSError or PhaseFailed. Other exceptions are raised at once.
    """
    first: Optional[Exception] = None
    for work in works:
        try:
            work()
        except (OSError, PhaseFailed) as error:
            if first is not None:
                sys.stderr.write(f"ffdl-controller: {error}\n")
            first = first or error
    if first is not None:
        raise first


def clear_stores(launch: LaunchFile, is_dead: Callable[[str, int], bool]) -> None:
    """Remove incomplete files of killed processes from the stores. Raises OSError."""
    for place in {launch.stores.results, launch.stores.logs} - {""}:
        remove_half_copied(place, is_dead)


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


END_S = 4.0


class _Stopped(Exception):
    """The learners have ended, so everything is stored again."""


class Uploading:
    """Uploads results and logs of one node while its learners run. Begin after they were started, which are forked."""

    def __init__(self, launch: LaunchFile, node_rank: int) -> None:
        self._launch, self._node_rank = launch, node_rank
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploading", daemon=True)
        self._reported = ""
        self._stored = ""
        self._report = notes_once(onto_errors(STORING))

    def begin(self) -> None:
        """Start the thread if there is something to upload. Call :func:`signals.hold_signals` before."""
        if self._launch.uploads:
            self._thread.start()

    def finish(self) -> None:
        """End the thread and its program. If it hangs in a file system, it is left behind."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.wait(self._launch.limits.upload_s):
            try:
                self._stored = send_while_running(
                    self._launch, self._node_rank, self._go_on, self._report, self._stored
                )
                self._reported = ""
            except _Stopped:
                return
            except (PhaseFailed, OSError) as error:
                self._complain(str(error))

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def _complain(self, why: str) -> None:
        if why != self._reported and not self._stop.is_set():
            self._reported = why
            every = self._launch.limits.upload_s
            sys.stderr.write(f"ffdl-controller: nothing can be stored now: {why}; tried again each {every:.0f} s\n")

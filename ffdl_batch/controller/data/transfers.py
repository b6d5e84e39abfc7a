"""Plan and run the transfers between an attempt and its stores: the tasks of the staging program.

Data are copied once, into the job's own directory. Each node uploads what its learners wrote. Every node that ends
uploads the directories that all learners share; the bytes are the same, so two uploads do no harm.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
from typing import Callable, Iterable, List, Optional, Sequence, Tuple

from ffdl_batch.attempt.directory_tree import Directories, roots_of
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.data.cache_entries import ROUNDS, Entries, Listener, cache_of, unlink_links
from ffdl_batch.controller.data.metric_files import show_growing
from ffdl_batch.controller.data.model_unpacking import copy_archive
from ffdl_batch.controller.data.staging_process import Program, StagingFailed, run_staging
from ffdl_batch.controller.data.transfer_progress import also_beside, into_journal, into_log, onto_errors
from ffdl_batch.controller.learner.orphans import mark
from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass, Line, Note, StageTask, Transfer, fault_code
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.placeholders import fill, placeholders

LOOK_EACH = 1000
"""Number of files between two calls of `go_on`."""


def sight_of(directories: Iterable[str], go_on: Callable[[], None]) -> str:
    """Return a digest of the names, inodes, sizes and times of all files in the directories.

    Links are not followed, and only one directory's names are in memory at a time. Files that cannot be read now are
    left out. Raises what `go_on` raises, which is called repeatedly.
    """
    digest, count = hashlib.sha256(), 0
    for top in directories:
        waiting: List[str] = [top]
        while waiting:
            here = waiting.pop()
            digest.update(os.fsencode(here) + b"\0\0")
            for name in _names(here):
                count += 1
                if count % LOOK_EACH == 0:
                    go_on()
                path = os.path.join(here, name)
                try:
                    found = os.lstat(path)
                except OSError:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
                else:
                    what = f"{found.st_mode:o} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
                    digest.update(os.fsencode(name) + b"\0" + what.encode("ascii") + b"\0")
    return digest.hexdigest()


def _names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


PATIENT_TRIES = 8
"""Tries for data that an allocation waits for: about two minutes without an answer."""
LOCK_S = 30.0
"""Seconds to wait for a program of an earlier run, perhaps on another node. It ends when its reader has ended."""
REST_S = 10.0
"""Seconds that a large file must be unchanged before it is uploaded while learners run."""
_PLAIN_WRONG = (FaultClass.CREDENTIALS, FaultClass.MISSING, FaultClass.REFUSED)
LEARNER = "learner_id"
LOADING, STORING = "loading data", "storing"


def loading_reporter(launch: LaunchFile, node_rank: int) -> Callable[[Line], None]:
    """Return a function that reports loading in the log of the node's first learner."""
    attempt = AttemptDir(launch.attempt_dir)
    learner = next(iter(launch.learners_on(node_rank)), 1)
    return into_log(attempt.training_log(learner), attempt.marks(learner), LOADING)


def not_kept_reporter(launch: LaunchFile, node_rank: int, journal: Journal) -> Callable[[str], None]:
    """Return a function that reports things that are not stored unchanged, also in the log of the first learner."""
    attempt = AttemptDir(launch.attempt_dir)
    learner = next(iter(launch.learners_on(node_rank)), 1)
    return into_journal(journal, into_log(attempt.training_log(learner), attempt.marks(learner), STORING))


def bring_data(
    launch: LaunchFile,
    node_rank: int,
    go_on: Callable[[], None],
    entries: Entries,
    fetches: Sequence[Transfer],
    *,
    wait_s: float = LOCK_S,
) -> None:
    """Copy these data from their stores, and hold what is linked from the cache.

    If another process copies the same, wait for it up to `wait_s` seconds. If this node reaches no store, the data were
    copied before. Raises StagingFailed, OSError, and what `go_on` raises.
    """
    if not fetches or launch.cut_off:
        return
    task = replace(
        _task(launch, Direction.IN, fetches, JobDir(launch.job_dir).staging),
        tries=PATIENT_TRIES,
        cache=cache_of(launch),
        wait_s=wait_s,
    )
    report = loading_reporter(launch, node_rank)
    if node_rank == 0:
        report = also_beside(AttemptDir(launch.attempt_dir).moving, LOADING, report)
    for turn in range(1, ROUNDS + 1):
        listener = Listener(entries, report, lambda found: fetches[found.transfer].link)
        run_staging(_program(launch, node_rank), task, go_on, listener)
        if not listener.lost:
            return
        if turn == ROUNDS - 1:  # another process removes it repeatedly
            task = replace(task, cache=None)
            unlink_links(launch)


def check_mountable(launch: LaunchFile, node_rank: int, fetch: Transfer, go_on: Callable[[], None]) -> None:
    """Check that the data to mount exist, because a mount of a missing bucket would be an empty directory.

    They need not fit on a disk. Raises StagingFailed, OSError, and what `go_on` raises.
    """
    task = _task(launch, Direction.IN, (fetch,), _state(launch, f"mount-{node_rank}"))
    try:
        run_staging(_program(launch, node_rank), task, go_on, onto_errors(LOADING), check=True)
    except StagingFailed as failed:
        if failed.kind is not FaultClass.FULL:
            raise


def check_results_store(launch: LaunchFile, node_rank: int, go_on: Callable[[], None]) -> None:
    """Check that results can be stored. A store that does not answer now may do so later.

    Raises PhaseFailed (C103, or S306 if the program itself fails), OSError, and what `go_on` raises.
    """
    transfers = _shared(launch)[:1]
    if not transfers:
        return
    task = _task(launch, Direction.OUT, transfers, _state(launch, f"out-{node_rank}"))
    report = onto_errors("the results store")
    try:
        run_staging(_program(launch, node_rank), task, go_on, report, check=True)
    except StagingFailed as failed:
        if failed.kind is FaultClass.NETWORK:
            return
        kind = FaultClass.MISSING if failed.kind in _PLAIN_WRONG else failed.kind
        raise PhaseFailed(
            fault_code(kind, Direction.IN), f"the store of results cannot be used: {failed}", failed.fault_class
        ) from failed


def send_results(
    launch: LaunchFile,
    node_rank: Optional[int],
    go_on: Callable[[], None],
    note: Optional[Callable[[str], None]] = None,
    *,
    late: bool = False,
) -> None:
    """Upload what all learners share: results, the model archive, checkpoints.

    `node_rank` is None if the attempt has ended. `note` gets a sentence about each thing that cannot be stored
    unchanged. With `late`, files of a newer attempt stay. Raises StagingFailed, OSError, and what `go_on` raises.
    """
    _place_archive(launch)
    _send(launch, _shared(launch), node_rank, go_on, late, note)


def send_logs(
    launch: LaunchFile,
    node_rank: Optional[int],
    learner_ids: Sequence[int],
    go_on: Callable[[], None],
    *,
    late: bool = False,
) -> None:
    """Upload the logs of these learners, those of earlier attempts below them. With `late`, a newer attempt's come
    first.

    Raises StagingFailed, OSError, and what `go_on` raises.
    """
    found = [one for number in learner_ids for one in _logs(launch, number, earlier=True, late=late)]
    _send(launch, found, node_rank, go_on, late)


def send_while_running(
    launch: LaunchFile, node_rank: int, go_on: Callable[[], None], report: Callable[[Line], None], stored: str = ""
) -> str:
    """Upload what exists now. The first node uploads what all learners share.

    Return a digest of it if everything was stored, else "". Nothing is uploaded if the digest equals `stored`. Raises
    StagingFailed, OSError, and what `go_on` raises.
    """
    own: List[Transfer] = []
    unshown: Optional[OSError] = None
    for number in launch.learners_on(node_rank):
        logs, measured = _logs(launch, number), ""
        try:
            measured = show_growing(launch, number)
        except OSError as error:  # the log is uploaded anyway
            unshown = error
        own += [replace(one, local=measured) for one in logs if measured] + logs
    if node_rank == 0 or launch.apart:
        _place_archive(launch)
        own += _shared(launch)
    there, _ = _present(launch, own)
    sight = sight_of([one.local for one in there], go_on)
    if sight != stored and there:
        task = replace(_task(launch, Direction.OUT, there, _state(launch, f"out-{node_rank}")), rest_s=REST_S)
        done = run_staging(_program(launch, node_rank), task, go_on, _beside(launch, node_rank, report))
        stored = "" if done.later else sight
    if unshown is not None:
        raise unshown
    return stored


def _send(
    launch: LaunchFile,
    transfers: Sequence[Transfer],
    node_rank: Optional[int],
    go_on: Callable[[], None],
    late: bool,
    note: Optional[Callable[[str], None]] = None,
) -> None:
    to_errors = onto_errors(STORING)

    def report(line: Line) -> None:
        to_errors(line)
        if isinstance(line, Note) and note is not None:
            note(line.why)

    there, replaced = _present(launch, transfers)
    if there:
        place = "out-later" if node_rank is None else f"out-{node_rank}"
        task = replace(_task(launch, Direction.OUT, there, _state(launch, place)), keep_newer=late)
        run_staging(_program(launch, node_rank), task, go_on, _beside(launch, node_rank, report))
    if replaced is not None:
        raise replaced


def _present(launch: LaunchFile, transfers: Sequence[Transfer]) -> Tuple[List[Transfer], Optional[OSError]]:
    """Return the transfers whose directories exist, and the first error of a directory that a learner has replaced.

    Raises OSError.
    """
    there: List[Transfer] = []
    replaced: Optional[OSError] = None
    for one in transfers:
        try:
            Directories(one.local, below=launch.job_dir).close()
            there.append(one)
        except FileNotFoundError:
            continue
        except NotADirectoryError as error:
            replaced = replaced or error
        except PermissionError:  # the staging program reports what it cannot read
            there.append(one)
    return there, replaced


def _beside(launch: LaunchFile, node_rank: Optional[int], report: Callable[[Line], None]) -> Callable[[Line], None]:
    """Return `report`, which on the first node also writes the cell with the progress."""
    return report if node_rank else also_beside(AttemptDir(launch.attempt_dir).moving, STORING, report)


def _program(launch: LaunchFile, node_rank: Optional[int]) -> Program:
    return Program(launch.staging, mark(launch.token, node_rank) if node_rank is not None else "", launch.umask)


def _task(launch: LaunchFile, direction: Direction, transfers: Sequence[Transfer], state_dir: str) -> StageTask:
    secrets = AttemptDir(launch.attempt_dir).secrets
    asks = any(one.store.credentials for one in transfers)
    task = StageTask(direction, tuple(transfers), state_dir, secrets if asks else "", wait_s=LOCK_S)
    if direction is Direction.OUT and launch.apart:  # each pod has a copy of the checkpoints
        return replace(task, brought_dir=JobDir(launch.job_dir).staging)
    return task


def _state(launch: LaunchFile, name: str) -> str:
    return AttemptDir(launch.attempt_dir).staging(name)


def _sent(launch: LaunchFile) -> Sequence[Transfer]:
    """Return the uploads that this node can do."""
    return () if launch.cut_off else launch.uploads


def _shared(launch: LaunchFile) -> List[Transfer]:
    """Return the transfers of what all learners share. Results and checkpoints keep links, modes and empty
    directories."""
    shared = [_filled(one, {}) for one in _sent(launch) if LEARNER not in placeholders(one.local)]
    written = (AttemptDir(launch.attempt_dir).results, launch.checkpoints)
    return [replace(one, roots=roots_of(launch, one.local)) if one.local in written else one for one in shared]


def _logs(launch: LaunchFile, learner_id: int, *, earlier: bool = False, late: bool = False) -> List[Transfer]:
    found = []
    for one in _sent(launch):
        if LEARNER not in placeholders(one.local):
            continue
        made = _filled(one, {LEARNER: str(learner_id)})
        if earlier:
            for number in range(1, launch.attempt + (1 if late else 0)):
                local = JobDir(launch.job_dir).attempt(number).learner_logs(learner_id)
                found.append(replace(made, prefix=f"{made.prefix}/attempt-{number}", local=local))
        if not late:
            found.append(made)
    return found


def _filled(transfer: Transfer, values: "dict[str, str]") -> Transfer:
    return replace(transfer, prefix=fill(transfer.prefix, values), local=fill(transfer.local, values))


def _place_archive(launch: LaunchFile) -> None:
    """Put the model archive into the directory from which it is uploaded. Raises OSError."""
    place = AttemptDir(launch.attempt_dir).staging("_submitted_code")
    target = os.path.join(place, "model.zip")
    if not launch.uploads or not launch.model_archive or os.path.exists(target):
        return
    os.makedirs(place, mode=0o700, exist_ok=True)
    try:
        os.link(launch.model_archive, target)
    except FileExistsError:  # another node was faster
        return
    except OSError:  # no hard links, or another file system
        copy_archive(launch.model_archive, target)

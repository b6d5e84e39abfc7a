"""Run the program once: read a task, do it, check it or list, and report the result."""

from __future__ import annotations

import errno
import fcntl
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ffdl_batch.domain.data.staging_protocol import (
    EXIT_STATUS,
    Direction,
    Failed,
    FaultClass,
    StageTask,
    StageTaskError,
    Transfer,
    decode_task,
    fault_code,
)
from ffdl_batch.domain.data.store_kinds import StoreKind
from ffdl_batch.host.core_dumps import forbid_core_dumps
from ffdl_batch.staging.cache.cached_transfer import through_cache
from ffdl_batch.staging.faults import KEPT, Fault, Retries, local_fault, located_at, shown
from ffdl_batch.staging.journal import Journal, has_journal
from ffdl_batch.staging.reporter import Reporter
from ffdl_batch.staging.run_context import Route, Run, UnreadableFiles, open_route
from ffdl_batch.staging.secrets import Secrets, read_secrets
from ffdl_batch.staging.transfer.download import download_planned
from ffdl_batch.staging.transfer.existing_files import require_same
from ffdl_batch.staging.transfer.planning import (
    existing,
    first_page,
    list_objects,
    plan_in,
    plan_out,
    probe,
    require_free,
    require_space,
)
from ffdl_batch.staging.transfer.tree_metadata import Entries, restore_entries, store_entries
from ffdl_batch.staging.transfer.upload import Upload
from ffdl_batch.staging.tree import Tree
from ffdl_batch.staging.workers import Workers

CHECK_TRIES = 2
AGAIN_S = 0.2


def run_program(path: str, *, check: bool, output: int, lists: bool = False) -> int:
    """Do the task in the file, check it, or list what is below its prefixes. Lines go to the descriptor `output`.
    Return the exit status."""
    silent = Reporter(output, lambda text: text, 0)
    try:
        task = decode_task(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, StageTaskError) as error:
        return _fail(silent, Direction.IN, Fault(FaultClass.INTERNAL, str(error)))
    try:
        if task.secrets_file:  # no memory image of what holds them
            forbid_core_dumps()
        secrets = read_secrets(task.secrets_file)
    except Fault as fault:
        return _fail(silent, task.direction, fault)
    reporter = Reporter(output, secrets.scrub, task.rate_line_s)
    try:
        with _run_of(task, secrets, reporter) as run:
            (_check if check else _list if lists else _move)(run)
        reporter.done()
    except Fault as fault:
        if fault.kind is FaultClass.NETWORK and reporter.counted().bytes:
            fault.cure = f"{fault.cure or fault.usual_cure()}; {KEPT}"
        return _fail(reporter, task.direction, fault)
    except Exception as error:  # noqa: BLE001 - the last line says what it was; a trace might hold a secret
        what = f"the staging program failed: {type(error).__name__}: {error}"
        return _fail(reporter, task.direction, Fault(FaultClass.INTERNAL, what))
    return 0


def _fail(reporter: Reporter, direction: Direction, fault: Fault) -> int:
    reporter.failed(Failed(fault_code(fault.kind, direction), fault.sentence(), fault.kind, fault.placed()))
    return EXIT_STATUS[fault.kind]


@contextmanager
def _run_of(task: StageTask, secrets: Secrets, reporter: Reporter) -> Iterator[Run]:
    stop = threading.Event()
    try:
        with _alone(task.state_dir, task.wait_s):
            journal, workers = Journal(task.state_dir, task.direction), Workers(task.parallel, stop)
            brought = Journal(task.brought_dir, Direction.IN) if has_journal(task.brought_dir) else None
            try:
                retries = Retries(task.tries, task.pause_s, reporter.retry, stop)
                unreadable = UnreadableFiles(reporter, _kind_of_denial(task))
                yield Run(task, secrets, journal, reporter, retries, workers, stop, unreadable, brought)
            finally:
                workers.end()
                for one in filter(None, (journal, brought)):
                    one.close()
    except OSError as error:
        raise local_fault(error, task.state_dir) from error


def _kind_of_denial(task: StageTask) -> FaultClass:
    """Return the kind of the fault if the access to some files is denied. Services deny it to the credentials."""
    if task.direction is Direction.OUT:
        return FaultClass.UNREADABLE
    is_here = all(transfer.store.kind is StoreKind.FILE for transfer in task.transfers)
    return FaultClass.REFUSED if is_here else FaultClass.CREDENTIALS


@contextmanager
def _alone(state_dir: str, wait_s: float) -> Iterator[None]:
    """Let one process at a time work with a task's journal. Raises Fault, OSError."""
    Path(state_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    end = time.monotonic() + wait_s
    with (Path(state_dir) / "lock").open("w") as lock:
        while not _locked(lock.fileno()):
            if time.monotonic() >= end:
                what = f"another process is at work on this task ({shown(state_dir)})"
                raise Fault(FaultClass.REFUSED, what)
            time.sleep(AGAIN_S)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check(run: Run) -> None:
    quick = replace(run, retries=replace(run.retries, tries=min(CHECK_TRIES, run.task.tries)))
    for transfer in run.task.transfers:
        with closing(_opened(quick, transfer)) as route:
            _check_route(route)
    run.unreadable.require_none("can be copied", denied=FaultClass.REFUSED)


def _check_route(route: Route) -> None:
    if route.run.task.direction is Direction.OUT:
        probe(route)
        return
    size = sum(max(item.size, 0) for item in first_page(route))
    with located_at(route.transfer.store):
        require_free(existing(route.transfer.local), size)


def _list(run: Run) -> None:
    for transfer in run.task.transfers:
        with closing(_opened(run, transfer)) as route:
            list_objects(route)
    run.unreadable.require_none("are listed", denied=FaultClass.REFUSED)


def _move(run: Run) -> None:
    is_in = run.task.direction is Direction.IN
    run.reporter.begin()
    with ExitStack() as trees:
        routes = [trees.enter_context(closing(_opened(run, transfer))) for transfer in run.task.transfers]
        if run.task.cache is not None:
            left = [through_cache(route, number, trees) for number, route in enumerate(routes)]
            routes = [route for route in left if route is not None]
        pairs = [(route, trees.enter_context(_tree(route.transfer, make=is_in))) for route in routes]
        entries: list[Entries] = []
        for route, tree in pairs:
            if is_in:
                plan_in(route, tree)
            else:
                entries.append(plan_out(route, tree))
            if is_in and not run.task.replaces:
                require_same(route, tree)
        files, size = run.journal.totals()
        if not is_in:  # what is known to be stored has not been planned
            there = run.reporter.counted()
            files, size = files + there.files, size + there.bytes
        run.reporter.expect(files, size)
        if is_in:
            require_space(pairs)
        run.workers.begin()
        if is_in:
            for route, tree in pairs:
                download_planned(route, tree)
            run.workers.finish()
            for route, tree in pairs:
                restore_entries(route, tree)
            run.unreadable.require_none("are copied")
        else:
            _send_all(run, [Upload(route, tree) for route, tree in pairs])
            for (route, tree), found in zip(pairs, entries, strict=True):
                store_entries(route, tree, found)
            run.unreadable.require_none("are stored")


def _opened(run: Run, transfer: Transfer) -> Route:
    """Return the transfer with its store. Enable garbage collection, but exclude the existing objects, which stay until
    the end: a client of S3 has hundreds of thousands."""
    route = open_route(run, transfer)
    gc.freeze()
    gc.enable()
    return route


def _tree(transfer: Transfer, *, make: bool) -> Tree:
    try:
        return Tree(transfer.local, make=make)
    except FileNotFoundError:
        what = f"the directory {shown(transfer.local)} {'cannot be made' if make else 'is not there'} on this machine"
        kind = FaultClass.REFUSED if make else FaultClass.MISSING
        raise Fault(kind, what, cure="name a directory that can be made, or one that is there") from None
    except OSError as error:
        fault = local_fault(error, transfer.local)
        if not make and error.errno == errno.EACCES:
            fault.kind = FaultClass.UNREADABLE
        raise fault from error


def _send_all(run: Run, uploads: list[Upload]) -> None:
    for one in uploads:
        one.add_planned()
    run.workers.finish()
    for one in uploads:
        one.require_all()
    for one in uploads:
        one.abort_old_uploads()

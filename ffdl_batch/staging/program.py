"""One call of the program: a task is read, done or only checked, and what came of it is said."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ffdl_batch.domain.staging import (
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
from ffdl_batch.staging.bringing import Bringing
from ffdl_batch.staging.faults import Fault, at_store, of_local, shown
from ffdl_batch.staging.journal import Journal
from ffdl_batch.staging.planning import existing, first_page, plan_in, plan_out, probe, require_free, require_room
from ffdl_batch.staging.retries import Patience
from ffdl_batch.staging.secrets import Secrets, read_secrets
from ffdl_batch.staging.sending import Sending
from ffdl_batch.staging.telling import Teller
from ffdl_batch.staging.tree import Tree
from ffdl_batch.staging.work import Run, Way, way_of
from ffdl_batch.staging.workers import Workers

CHECK_TRIES = 2


def run_program(path: str, *, check: bool, output: int) -> int:
    """Do the task in the file, or check it; lines go to the descriptor `output`. The exit status."""
    silent = Teller(output, lambda text: text, 0)
    try:
        task = decode_task(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, StageTaskError) as error:
        return _fail(silent, Direction.IN, Fault(FaultClass.TASK, str(error)))
    try:
        secrets = read_secrets(task.secrets_file)
    except Fault as fault:
        return _fail(silent, task.direction, fault)
    teller = Teller(output, secrets.scrub, task.rate_line_s)
    try:
        with _run_of(task, secrets, teller) as run:
            (_check if check else _move)(run)
        teller.done()
    except Fault as fault:
        return _fail(teller, task.direction, fault)
    except Exception as error:  # noqa: BLE001 - the last line says what it was; a trace might hold a secret
        what = f"staging failed by itself: {type(error).__name__}: {error}"
        return _fail(teller, task.direction, Fault(FaultClass.INTERNAL, what))
    return 0


def _fail(teller: Teller, direction: Direction, fault: Fault) -> int:
    teller.failed(Failed(fault_code(fault.kind, direction), fault.sentence(), fault.kind))
    return EXIT_STATUS[fault.kind]


@contextmanager
def _run_of(task: StageTask, secrets: Secrets, teller: Teller) -> Iterator[Run]:
    stop = threading.Event()
    try:
        with _alone(task.state_dir):
            journal, workers = Journal(task.state_dir, task.direction), Workers(task.parallel, stop)
            try:
                patience = Patience(task.tries, task.pause_s, teller.retry, stop)
                yield Run(task, secrets, journal, teller, patience, workers, stop)
            finally:
                workers.end()
                journal.close()
    except OSError as error:
        raise of_local(error, task.state_dir) from error


@contextmanager
def _alone(state_dir: str) -> Iterator[None]:
    """One process at a time works with a task's journal. Raises Fault, OSError."""
    Path(state_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
    with (Path(state_dir) / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another process is at work on this task ({shown(state_dir)})"
            raise Fault(FaultClass.REFUSED, what) from None
        yield


def _check(run: Run) -> None:
    quick = replace(run, patience=replace(run.patience, tries=min(CHECK_TRIES, run.task.tries)))
    for transfer in run.task.transfers:
        with closing(way_of(quick, transfer)) as way:
            _check_way(way)


def _check_way(way: Way) -> None:
    if way.run.task.direction is Direction.OUT:
        probe(way)
        return
    size = sum(max(item.size, 0) for item in first_page(way))
    with at_store(way.transfer.store):
        require_free(existing(way.transfer.local), size)


def _move(run: Run) -> None:
    is_in = run.task.direction is Direction.IN
    run.teller.begin()
    with ExitStack() as trees:
        ways = [trees.enter_context(closing(way_of(run, transfer))) for transfer in run.task.transfers]
        pairs = [(way, trees.enter_context(_tree(way.transfer, make=is_in))) for way in ways]
        for way, tree in pairs:
            (plan_in if is_in else plan_out)(way, tree)
        run.teller.expect(*run.journal.totals())
        if is_in:
            require_room(ways)
        run.workers.begin()
        for way, tree in pairs:
            (_bring if is_in else _send)(way, tree)
        run.workers.finish()
        for way, tree in pairs:
            if not is_in:
                Sending(way, tree).give_up_left_uploads()


def _tree(transfer: Transfer, *, make: bool) -> Tree:
    try:
        return Tree(transfer.local, make=make)
    except FileNotFoundError:
        raise Fault(FaultClass.MISSING, f"there is no directory {shown(transfer.local)} on this node") from None
    except OSError as error:
        raise of_local(error, transfer.local) from error


def _bring(way: Way, tree: Tree) -> None:
    bringing = Bringing(way, tree)
    for planned in way.run.journal.planned(way.place):
        if way.run.journal.is_directory(way.place, planned.name):
            way.run.teller.skip(f"{shown(planned.item.key)} is left out: it is a directory's name, too")
        else:
            bringing.bring(planned)


def _send(way: Way, tree: Tree) -> None:
    sending = Sending(way, tree)
    for planned in way.run.journal.planned(way.place):
        sending.send(planned)

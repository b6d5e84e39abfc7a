"""Run the staging program (:mod:`ffdl_batch.domain.data.staging_protocol`): write its task, read its lines, and end it
when it is no longer needed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from typing import Callable, Dict, Optional, Tuple, Union

from ffdl_batch.attempt.file_writer import open_own, write_text
from ffdl_batch.attempt.log_tail import last_line
from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.learner.orphans import MARK
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.data.image_task import ImageTask, encode_image_task
from ffdl_batch.domain.data.staging_protocol import (
    EXIT_STATUS,
    Direction,
    Done,
    Failed,
    FaultClass,
    Line,
    StageTask,
    encode_task,
    fault_code,
    read_line,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import end_child

TICK_S = 0.2
END_S = 2.0
"""Seconds that the program may take to end after TERM."""
ENDED_OUTSIDE = (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT)
STARTS = 5
TASK, ERRORS = "task.json", "errors"


class StagingFailed(PhaseFailed):
    """A transfer failed."""

    def __init__(self, code: str, message: str, kind: FaultClass) -> None:
        super().__init__(code, message, kind.value)
        self.kind = kind


@dataclass(frozen=True)
class Program:
    """The staging program on this node."""

    argv: Tuple[str, ...]
    mark: str = ""
    """Value of MARK by which the next run of a controller finds it."""
    umask: int = -1
    """-1 means that of this process."""


def run_staging(
    program: Program,
    task: StageTask,
    go_on: Callable[[], None],
    report: Callable[[Line], None],
    *,
    check: bool = False,
) -> Done:
    """Do the task, or check it. Return the program's last line.

    `go_on` is called repeatedly and may raise to end the program. Then the next run continues from what was
    transferred. A scheduler signals all processes of a job at once, so a program that a signal ended is started again
    unless `go_on` raises. Raises StagingFailed, OSError, and what `go_on` raises.
    """
    call = _Call(encode_task(task), task.state_dir, task.direction, ("--check",) if check else ())
    return _run_call(program, call, go_on, report)


def run_image(
    program: Program, task: ImageTask, directory: str, go_on: Callable[[], None], report: Callable[[Line], None]
) -> None:
    """Put an image into the cache. `directory` is the task's own. Raises as :func:`run_staging`."""
    _run_call(program, _Call(encode_image_task(task), directory, Direction.IN, ("--image",)), go_on, report)


@dataclass(frozen=True)
class _Call:
    """One call of the program."""

    text: str
    """The task."""
    directory: str
    direction: Direction
    options: Tuple[str, ...] = ()


def _run_call(program: Program, call: _Call, go_on: Callable[[], None], report: Callable[[Line], None]) -> Done:
    os.makedirs(call.directory, mode=0o700, exist_ok=True)
    path = os.path.join(call.directory, TASK)
    write_text(path, call.text)
    argv = [*module_argv("ffdl_batch.controller.become"), *program.argv, path, *call.options]
    start = 0
    while True:
        start += 1
        status, last = _run(argv, program, call.directory, go_on, report)
        if status == 0 and isinstance(last, Done):
            return last
        if last is not None or status not in ENDED_OUTSIDE or start == STARTS:
            raise _failure(status, last, call)
        go_on()


def _run(
    argv: "list[str]", program: Program, directory: str, go_on: Callable[[], None], report: Callable[[Line], None]
) -> "Tuple[int, Optional[Union[Done, Failed]]]":
    """Run the program once. Return its exit status and its last line."""
    env: Dict[str, str] = {**os.environ, MARK: program.mark}
    with os.fdopen(open_own(os.path.join(directory, ERRORS), os.O_WRONLY | os.O_TRUNC), "wb") as errors:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            umask=program.umask,
        )
    assert process.stdout is not None
    try:
        last = _listen(process.stdout.fileno(), go_on, report)
        return process.wait(), last
    finally:
        process.stdout.close()
        end_child(process, END_S)


def _listen(
    descriptor: int, go_on: Callable[[], None], report: Callable[[Line], None]
) -> "Optional[Union[Done, Failed]]":
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    rest = b""
    last: Optional[Union[Done, Failed]] = None
    while True:
        found = poll.poll(TICK_S * 1000)
        go_on()
        if not found:
            continue
        data = os.read(descriptor, 65536)
        if not data:
            return last
        *lines, rest = (rest + data).split(b"\n")
        for text in lines:
            line = read_line(text.decode("utf-8", "replace"))
            if isinstance(line, (Done, Failed)):
                last = line
            if line is not None:
                report(line)


def _failure(status: int, last: "Optional[Union[Done, Failed]]", call: _Call) -> StagingFailed:
    if isinstance(last, Failed):
        return StagingFailed(last.code, last.message, last.class_)
    kind = next((kind for kind, number in EXIT_STATUS.items() if number == status), FaultClass.INTERNAL)
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    output = last_line(os.path.join(call.directory, ERRORS))  # for example that the interpreter does not exist
    code = fault_code(kind, call.direction) if status >= 0 else "S303" if call.direction is Direction.OUT else "S302"
    return StagingFailed(code, f"the staging program {how}" + (f": {output}" if output else ""), kind)

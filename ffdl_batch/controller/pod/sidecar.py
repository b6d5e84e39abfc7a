"""Run the pod's head or node controller, and connect it with the learner's container and the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import IO, ContextManager, Dict, List, Optional

from ffdl_batch.attempt.conclusion import EXIT_PLATFORM
from ffdl_batch.attempt.control_cell import RUN
from ffdl_batch.attempt.file_writer import read_text, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, find_object, find_text
from ffdl_batch.controller.head.pending_uploads import WHEN_STORED
from ffdl_batch.controller.head.time_limit import TimeLimit
from ffdl_batch.controller.learner.pod_exchange import PodExchange, living
from ffdl_batch.controller.own_program import own_argv
from ffdl_batch.controller.pod.daemon_requests import Answers, DaemonRequests
from ffdl_batch.controller.pod.directory_setup import LAUNCH, Given
from ffdl_batch.controller.pod.relay import Relay, to_standard_output
from ffdl_batch.controller.rendezvous.node_barrier import read_events
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import DONE, TERMINATING
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, node_source
from ffdl_batch.host.processes import lives_here, send
from ffdl_batch.host.signals import HANDLED, next_signal

MESSAGE_PATH = "/dev/termination-log"
MESSAGE_BYTES = 4096
"""Maximum size of a container's termination message (kubernetes.io, "Determine the Reason for Pod Failure")."""
_SHORT = 500
TICK_S = 0.2
PROGRESS = "said"
"""File in the exchange directory with the errors of the child that stores pending uploads."""
WARN_AGAIN_S = 5.0
"""Seconds after which a warning is repeated, because a head that waits or starts does not receive it."""
RESTARTS = 3
"""Maximum number of restarts of a killed controller. A head finds its node controller and continues."""
CONFIRM_S = 60.0
"""Maximum seconds that a pod whose learner failed waits until the head has written its final record.

When a pod of a Job fails, the Job ends the other pods, and kubelet brings no more requests to them. So the head would
never find out how this learner ended.
"""


class Sidecar:
    """One run of this program in the pod."""

    def __init__(self, launch: LaunchFile, index: int, given: Given, seat: PodExchange, run: int, message: str) -> None:
        self._launch, self._index, self._seat, self._run, self._message = launch, index, seat, run, message
        self._attempt = AttemptDir(launch.attempt_dir)
        self._plan, self._uploads_pending = given.plan, launch.pod is not None and launch.pod.uploads_pending
        self._progress = seat.file(PROGRESS)
        self._relay = Relay(launch, index, run, to_standard_output)
        self._answers = Answers(launch, index, self._relay.answer)
        self._requests = DaemonRequests(
            launch, index, given.annotations, self._relay.send_again, self._pass_on, self._answers.begin
        )
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._restarts = 0
        self._terminated = False
        self._warn_at = 0.0
        self._limit: Optional[TimeLimit] = None

    def run(self, *, is_done: bool) -> int:
        """Run until kubelet ends this process. Return the exit status.

        `is_done` means that an earlier run finished the attempt.
        """
        self._requests.look()  # a halt may have been requested before
        if is_done:
            text = read_text(self._seat.file(DONE)).strip()
            status = int(text) if text.isdigit() else EXIT_PLATFORM
            self._relay.begin()
        else:
            status = self._execute()
            self._relay.drain()
            leave(self._message, self._termination_message(status))
            if status and self._index > 0 and self._launch.apart:
                self._await_head()
            let_go(self._seat, status)
        while not self._terminated:
            self._take_signals(TICK_S)
            self._requests.look()
        self._relay.finish()
        return status

    # ------------------------------------------------------------------------------------------ the controller

    def _execute(self) -> int:
        begun = False
        while True:
            if self._child is None and (self._index == 0 or self._launch.apart or self._is_first_at_work()):
                self._start()
            if self._child is None and self._is_over():
                return EXIT_PLATFORM
            if not begun:
                begun = True
                self._relay.begin()
            self._take_signals(TICK_S)
            self._requests.look()
            self._warn()
            if self._limit is not None:
                self._limit.look()
            status = self._child.poll() if self._child is not None else None
            if status is None:
                continue
            if status >= 0:
                return status
            if self._restarts == RESTARTS or self._terminated:
                self._end_learner()
                return 128 - status
            sys.stderr.write(f"ffdl-controller: the controller was killed by signal {-status} and is started again\n")
            self._child = None
            self._restarts += 1

    def _start(self) -> None:
        """Start the controller. It inherits blocked signals, so none ends it before it handles them."""
        launch_path = os.path.join(self._plan, LAUNCH) if self._uploads_pending else self._attempt.launch
        argv = [*own_argv(), *self._command(), "--launch", launch_path]
        env = {**os.environ, RUN: str(self._run + self._restarts)}
        with self._complaints() as errors:
            self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2, stderr=errors, env=env)
        if self._index > 0 and self._launch.apart and self._limit is None:
            self._limit = TimeLimit(self._launch)  # the head's stop cell does not reach this pod

    def _command(self) -> List[str]:
        if self._uploads_pending:
            return ["upload", "--final-record", WHEN_STORED]
        return ["head"] if self._index == 0 else ["node", "--rank", str(self._index)]

    def _complaints(self) -> "ContextManager[Optional[IO[bytes]]]":
        """Return the file for the child's errors, if it stores pending uploads: they become the termination message."""
        return open(self._progress, "wb") if self._uploads_pending else nullcontext()

    def _termination_message(self, status: int) -> str:
        if not self._uploads_pending or status == 0:
            return termination_message(self._attempt, self._index)
        errors = read_text(self._progress)
        sys.stderr.write(errors)
        return error_message(status, (errors.strip().splitlines() or [f"storing exited with status {status}"])[-1])

    def _is_first_at_work(self) -> bool:
        """Return whether the head has ended older attempts, if pods share a tree."""
        try:
            return any(event.kind is EventKind.STARTED for event in read_events(self._attempt, node_source(0)))
        except OSError:
            return False

    def _await_head(self) -> None:
        """Wait until the head has written its final record, or this pod is being ended."""
        end = time.monotonic() + CONFIRM_S
        while time.monotonic() < end and not self._terminated and not self._head_has_ended():
            if os.path.exists(self._seat.file(TERMINATING)):
                return
            self._take_signals(TICK_S)
            self._requests.look()

    def _head_has_ended(self) -> bool:
        try:
            return any(event.kind is EventKind.FINAL for event in read_events(self._attempt, HEAD))
        except OSError:
            return False

    def _is_over(self) -> bool:
        """Return whether no controller may be started any more."""
        return self._terminated or os.path.exists(self._attempt.final)

    def _end_learner(self) -> None:
        """Kill the learner, because no controller is left that would."""
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            left = living(self._seat)
            if not left:
                return
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)

    # -------------------------------------------------------------------------------------------------- signals

    def _take_signals(self, wait_s: float) -> None:
        number = next_signal(wait_s)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._terminated = True
            if number != signal.SIGCHLD:
                self._send(number)
            number = next_signal(0.0)

    def _warn(self) -> None:
        """Warn the controller if the pod is being deleted. That is treated like a preemption."""
        now = time.monotonic()
        if now >= self._warn_at and os.path.exists(self._seat.file(TERMINATING)):
            self._warn_at = now + WARN_AGAIN_S
            self._send(signal.SIGURG)

    def _pass_on(self, name: str) -> bool:
        """Send a signal that the daemon requests; return whether it was sent, or never can be."""
        known: Dict[str, int] = {one.name[3:]: one for one in signal.Signals}
        number = known.get(name)
        if number == signal.SIGKILL:
            return self._kill_node_controller()
        if number is None or number not in HANDLED:
            sys.stderr.write(f"ffdl-controller: a controller does not handle the signal {name}\n")
            return True
        return self._send(number)

    def _kill_node_controller(self) -> bool:
        """Kill the node controller of this pod. The head continues and reports it."""
        started = [e for e in read_events(self._attempt, node_source(self._index)) if e.kind is EventKind.STARTED]
        if not started or not lives_here(started[-1].fields):
            return False
        return send(int(str(started[-1].fields["pid"])), signal.SIGKILL)

    def _send(self, number: int) -> bool:
        child = self._child
        return child is not None and child.poll() is None and send(child.pid, number)


def let_go(seat: PodExchange, status: int) -> None:
    """Let the learner's container end with `status`, even if it has not started yet. Raises OSError."""
    write_text(seat.file(DONE), f"{status & 0xFF}\n")
    seat.open()
    seat.ring()


def rest_until_terminated(seat: PodExchange) -> None:
    """Wait until kubelet ends this container."""
    while next_signal(TICK_S) not in (signal.SIGTERM, signal.SIGINT):
        seat.ring()


def termination_message(attempt: AttemptDir, index: int) -> str:
    """Return the final record without the end of the log, for node 0, else the last events of the node that fit."""
    final = find_object(attempt.final, below=attempt.path) if index == 0 else {}
    if final:
        final.pop("log_tail", None)
        text = _plain(final)
        if len(text) > MESSAGE_BYTES:
            text = _plain({**final, "message": str(final.get("message", ""))[:_SHORT], "checkpoint": {}})
        if len(text) <= MESSAGE_BYTES:
            return text
    kept = ""
    events = find_text(attempt.event_file(node_source(index)), MAX_EVENT_BYTES, below=attempt.path)
    for line in reversed(events.splitlines(keepends=True)):
        if len(kept.encode()) + len(line.encode()) > MESSAGE_BYTES:
            break
        kept = line + kept
    return kept


def leave(path: str, text: str) -> None:
    """Write the termination message. A failure is reported and ignored."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text[:MESSAGE_BYTES])
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {path}: {error}\n")


def error_message(status: int, message: str) -> str:
    """Return the termination message of a controller that could not begin."""
    return _plain({"error": message[: 2 * _SHORT], "exit_status": status, "pod": os.uname().nodename})


def _plain(body: object) -> str:
    return json.dumps(body, ensure_ascii=True, separators=(",", ":"))

"""The process that owns one local job: it waits for its turn, runs the head controller and records its end.

:mod:`ffdl_local.adapter` starts it as a detached process, which outlives the daemon and leaves no zombie. If the head's
final record announces a successor, this process becomes the supervisor of that attempt, which queues like any other
job. It runs without site packages. Signals: TERM ends the job (the head gets TERM, and everything below is killed
`kill_wait_s` later), HUP ends it while it waits, URG, USR1 and USR2 are passed to the head.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.reader import read_object
from ffdl_batch.host.permissions import PRIVATE_UMASK, umask_set
from ffdl_batch.host.processes import adopt_orphans, boot_id
from ffdl_batch.host.signals import wait_for_signal
from ffdl_local.machine_queue import Queue, Slots
from ffdl_local.records import (
    EXIT,
    JOB_FILE,
    LOCK,
    STARTED,
    STATE,
    local_directory,
    process_stat,
    read_record,
    write_record,
)

TURN_S = 0.1
AGAIN_S = 1.0
EXIT_PATIENCE_S = 120.0
LOCK_TRIES = 50
HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGHUP}
FORWARDED = {signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2}


def main() -> int:
    """Run ``supervisor JOB_FILE LOCK_FD``: detach, print the token when the job is taken, and own the job."""
    job = read_object(sys.argv[1])
    lock = int(sys.argv[2])
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        with os.fdopen(read_end, encoding="utf-8") as answer:
            said = answer.read()
        sys.stdout.write(said)
        return 0 if said else 1
    os.close(read_end)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    supervisor = Supervisor(job, lock)
    try:
        supervisor.announce()
    except OSError as error:  # the starter gets the error and tries again
        sys.stderr.write(f"{job['attempt_dir']}: {error}\n")
        return 1
    os.write(write_end, f"{job['token']}\n".encode())
    os.close(write_end)
    following: Supervisor | None = supervisor
    while following is not None:
        following.warning = _detach_output(following.job)
        following.run()
        following = following.succeed()
    return 0


def _complain(text: str) -> None:
    """Write a message into the job's output, if the disk is not full."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"ffdl: {text}\n")


def _detach_output(job: dict[str, Any]) -> str:
    """Direct the output to the job's log, or to the batch log of the attempt if the log cannot be written. Return a
    warning for the owner, or ""."""
    null = os.open(os.devnull, os.O_RDONLY)
    log, batch_log, warning = job["log"], AttemptDir(job["attempt_dir"]).batch_log, ""
    with umask_set(job.get("umask", PRIVATE_UMASK)):
        try:
            out = _open_own_log(log) if log == batch_log else _open_log(log)
        except OSError as error:
            why = error.strerror or error
            try:
                out = _open_own_log(batch_log)
                warning = f"the output cannot be written to {log}: {why}; it is in {batch_log}"
            except OSError:  # the job runs without it
                out = os.open(os.devnull, os.O_WRONLY)
                warning = f"the output cannot be written to {log}: {why}; it is lost"
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)
    return warning


def _open_log(path: str) -> int:
    """Open the file that the owner named. It may be a link or a device, and nothing is replaced. Raises OSError."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK  # a pipe without reader is an error
    descriptor = os.open(path, flags, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _open_own_log(path: str) -> int:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return open_own(path, os.O_WRONLY | os.O_APPEND, 0o666)


class Supervisor:
    """One job, from the queue to its exit record. `job` is the content of ``local.json``."""

    def __init__(self, job: dict[str, Any], lock: int) -> None:
        """`lock` is the inherited descriptor that shows that this process lives."""
        self.job = job
        self._lock = lock
        self._directory = local_directory(job["attempt_dir"])
        self._cancelled = False
        self._submitted = time.time()
        self.warning = ""

    def announce(self) -> None:
        """Record the process that executes this attempt, before anything is executed."""
        pid = os.getpid()
        stat = process_stat(pid)
        self._record_state("pending", reason="Resources")
        write_record(
            self._directory / STARTED,
            {
                "native_id": self.job["token"], "host": socket.gethostname(), "pid": pid,
                "start_ticks": stat[2] if stat else 0, "boot_id": boot_id(), "at": self._submitted,
            },
        )  # fmt: skip

    def run(self) -> None:
        """Run the job, and record its end."""
        slots = self._await_turn()
        if slots is None:
            self._insist(lambda: self._record_exit(None))
            return
        status = self._run_head(slots)
        kill_descendants()
        self._insist(lambda: self._record_exit(status))
        slots.release()

    def succeed(self) -> Supervisor | None:
        """Return the announced supervisor of the next attempt; None if none follows, or if another process has it."""
        final = read_record(Path(self.job["attempt_dir"]) / "final.json") or {}
        if self._cancelled or final.get("goes_on") != "successor":
            return None
        job_id, _, number = self.job["token"].rpartition("-")
        directory = Path(self.job["attempt_dir"]).parent / f"attempt-{int(number) + 1}"
        job = read_record(directory / JOB_FILE)
        if job is None or job.get("token") != f"{job_id}-{int(number) + 1}":
            _complain(f"{directory / JOB_FILE} is missing or another attempt's; nothing follows")
            return None
        lock = _take_next(local_directory(str(directory)))
        if lock is None:
            return None
        os.close(self._lock)
        following = Supervisor(job, lock)
        following.announce()
        return following

    def _await_turn(self) -> Slots | None:
        """Wait for slots. Return None if the job was cancelled."""
        queue, entered = Queue(Path(self.job["queue"]), self.job["token"]), False
        try:
            while not self._cancelled:
                pause_s = TURN_S
                try:
                    if not entered:
                        queue.enter()
                        entered = True
                    slots = queue.try_take(self.job["max_jobs"], self.job["gpus"], self.job["machine_gpus"])
                    if slots is not None:
                        return slots
                except OSError as error:  # a full disk, say: the job waits on
                    _complain(f"its turn cannot be taken now: {error}")
                    pause_s = AGAIN_S
                info = wait_for_signal(HANDLED, pause_s)
                self._cancelled = info is not None and info.si_signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        finally:
            queue.leave()
        return None

    def _run_head(self, slots: Slots) -> int:
        # Processes that the head leaves behind become children of this one, so that it can end them. The head holds the
        # slots, too: if the supervisor is killed, the job keeps its GPUs.
        adopt_orphans()
        env = {**os.environ, "FFDL_NATIVE_ID": self.job["token"], "FFDL_NODE_RANK": "0"}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if slots.gpus:
            visible = [part for part in os.environ.get("FFDL_VISIBLE_GPUS", "").split(",") if part]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[n] if n < len(visible) else str(n) for n in slots.gpus)
        try:
            head = subprocess.Popen(
                self.job["argv"], stdin=subprocess.DEVNULL, env=env, cwd=self.job["attempt_dir"],
                pass_fds=(self._lock, *slots.descriptors), preexec_fn=_release_signals,  # noqa: PLW1509 - there are no threads here
            )  # fmt: skip
        except OSError as error:
            _complain(f"the controller cannot be started: {error}")
            return 127
        is_noted, kill_at = False, float("inf")
        while head.poll() is None:
            is_noted = is_noted or self._try(lambda: self._record_state("running", head=head.pid))
            info = wait_for_signal(HANDLED, 1.0)
            number = info.si_signo if info else 0
            if number in FORWARDED:
                _send(head.pid, number)
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._cancelled = True
                _send(head.pid, signal.SIGTERM)
                kill_at = min(kill_at, time.monotonic() + self.job["kill_wait_s"])
            if time.monotonic() > kill_at:
                kill_descendants(spare=head.pid)
                _send(head.pid, signal.SIGKILL)
        return head.returncode

    def _insist(self, write: Callable[[], None]) -> None:
        """Repeat a write until it succeeds, for EXIT_PATIENCE_S at most. After that, only the head's final record shows
        the end."""
        end = time.monotonic() + EXIT_PATIENCE_S
        while not self._try(write) and time.monotonic() < end:
            time.sleep(AGAIN_S)

    def _try(self, write: Callable[[], None]) -> bool:
        """Return whether a write succeeded. A full disk or a lost file server does not end the job."""
        try:
            write()
        except OSError as error:
            _complain(f"{self._directory}: {error}; it is tried again")
            return False
        return True

    def _record_state(self, phase: str, reason: str = "", head: int = 0) -> None:
        stat = process_stat(head) if head else None
        write_record(
            self._directory / STATE,
            {
                "phase": phase, "reason": reason, "head": head, "head_ticks": stat[2] if stat else 0,
                "submitted_at": self._submitted, "at": time.time(), "warning": self.warning,
            },
        )  # fmt: skip

    def _record_exit(self, status: int | None) -> None:
        before = read_record(self._directory / STATE) or {}
        write_record(
            self._directory / EXIT,
            {
                "status": status, "cancelled": self._cancelled, "at": time.time(),
                "submitted_at": self._submitted, "started_at": before.get("at") if status is not None else None,
                "warning": self.warning,
            },
        )  # fmt: skip


def _take_next(directory: Path) -> int | None:
    """Return the lock of an attempt that no process has started, else None: the daemon was first."""
    directory.mkdir(mode=0o700, exist_ok=True)
    lock = open_own(str(directory / LOCK), os.O_RDWR)
    for _ in range(LOCK_TRIES):  # readers hold it for moments
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if read_record(directory / STARTED) is None:
            return lock
        break
    os.close(lock)
    return None


def kill_descendants(spare: int = 0) -> None:
    """KILL everything below this process, until nothing is left but `spare`."""
    while True:
        found = [pid for pid in _descendants(os.getpid()) if pid != spare]
        for pid in found:
            _send(pid, signal.SIGKILL)
        if spare:
            return
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:  # all that have ended, because each search reads all of /proc
                pass
        except ChildProcessError:
            return


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        stat = process_stat(int(entry.name)) if entry.name.isdigit() else None
        if stat is not None and stat[0] not in "ZX":
            parents.setdefault(stat[1], []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile


def _release_signals() -> None:
    """Unblock all signals in the head, between fork and exec."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


if __name__ == "__main__":
    sys.exit(main())

"""Runs the loops: threads that call one step of a service repeatedly, and log every failure."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from ffdl_batch.daemon.loop_intervals import LONGEST_S, Backoff, DeployPace, WatchPace
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.outcome.heartbeat_loss import LONGEST_LOOK_S, look_every_s
from ffdl_batch.services.job_control.removal import remove_expired
from ffdl_batch.services.job_files.orphan_cleanup import sweep
from ffdl_batch.services.os_errors import explain
from ffdl_batch.services.secrets.job_secrets import forget_secrets
from ffdl_batch.store import DatabaseDamaged, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

SWEEP_FIRST_S = 60.0
SWEEP_EVERY_S = 3600.0
UPLOADS_FIRST_S = 5.0
UPLOADS_EVERY_S = 30.0
UPLOADS_WHILE_UPLOADING_S = 1.0
AWAITED_S = 0.2
"""Maximum interval between readings of doorbells while a user waits for changes."""
STORE_LONGEST_S = 5.0
"""Longest pause while the database is unavailable. Unlike a scheduler, it can be asked often."""
STOP_S = 15.0
"""How long the daemon waits at its end for running steps. If one takes longer, its lease expires by itself."""
DEPLOYERS = 4
"""The maximum number of steps of the deployer that run side by side. All but one wait for answers of schedulers."""

Turn = Callable[[], float]
"""Does one step, and returns how many seconds to sleep afterwards; :meth:`StepThread.wake` ends the sleep."""


class StepThread:
    """One loop. A failed turn is logged and repeated after a growing pause.

    The log has its traceback, unless the database or the file system of `place` is unavailable or damaged.
    """

    def __init__(self, name: str, turn: Turn, *, first_s: float = 0.0, place: str = "") -> None:
        self._turn, self._place = turn, place
        self._first_s = first_s
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._backoff = Backoff(random.random)
        # A daemon thread, so that a step that hangs in a dead file server does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def name(self) -> str:
        """Name of the loop in the log."""
        return self._thread.name

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether the loop was asked to end."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Begin the next turn now, or directly after the running one."""
        self._woken.set()

    def stop(self) -> None:
        """Ask the loop to end after the running turn; return at once."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether the loop has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._sleep(self._first_s)
        while not self._stopping.is_set():
            try:
                pause = self._one_turn()
            except MemoryError:  # not even the log record could be written
                pause = LONGEST_S
            self._sleep(pause)

    def _one_turn(self) -> float:
        try:
            pause = self._turn()
        except (StoreUnavailable, DatabaseDamaged) as error:
            pause = min(self._backoff.failed(), STORE_LONGEST_S)
            log.warning("loop %s waits for %.1f s: %s", self._thread.name, pause, error)
            return pause
        except Exception as error:  # the thread's outermost frame: whatever it is, it is logged and the loop continues
            pause = self._backoff.failed()
            trouble = explain(error, self._place) if isinstance(error, OSError) else None
            if trouble is not None:
                log.warning("loop %s waits for %.1f s: %s", self._thread.name, pause, trouble)
            else:
                log.exception("loop %s failed; it continues in %.1f s", self._thread.name, pause)
            return pause
        self._backoff.succeeded()
        return pause

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._woken.wait(seconds)
        self._woken.clear()


class Loops:
    """The daemon's loops over one platform. `on_change` is called after each step that changed something. `is_awaited`
    returns whether a user waits for changes: then doorbells are read more often."""

    def __init__(
        self, platform: Platform, on_change: Callable[[], None], is_awaited: Callable[[], bool] = lambda: False
    ) -> None:
        settings = platform.settings
        self._platform = platform
        self._on_change, self._is_awaited = on_change, is_awaited
        self._deployer, self._watcher = (
            platform.deployer(),
            platform.watcher(),
        )
        self._deployer_failed = False
        self._deploy_pace = DeployPace()
        self._watch_pace = WatchPace(settings.watch_interval_s, settings.doorbell_interval_s)
        self._deploys = [self._loop("deployer", self._deploy_turn)]
        """The last one claims jobs. The others end after their running step, which waits for a scheduler."""
        self._succession = threading.Lock()
        self._pacing = threading.Lock()
        self._watch = self._loop("watcher", self._watch_turn)
        self._listen = self._loop("listener", self._listen_turn)
        self._sweep = self._loop("janitor", self._sweep_turn, first_s=SWEEP_FIRST_S)
        self._uploader = platform.pending_uploads()
        self._uploads = self._loop("uploads", self._uploads_turn, first_s=UPLOADS_FIRST_S)
        self._keeper = platform.silence_keeper()
        self._silence = self._loop("silence", self._silence_turn, first_s=look_every_s(settings.silent_s))
        self._notifier = platform.notifier()
        self._notify = self._loop("notices", self._notifier.step)
        self._scaler = platform.scaler() or platform.last_size_changes()
        self._scale = [] if self._scaler is None else [self._loop("scaler", self._scale_turn)]
        platform.elastic_pools.wake = self._wake_scaler
        self._report = [self._loop("admissions", platform.admission.report_ended)] if platform.hub is not None else []
        self._poked = threading.Event()
        self._caught_up = threading.Event()

    def _loop(self, name: str, turn: Turn, *, first_s: float = 0.0) -> StepThread:
        return StepThread(name, turn, first_s=first_s, place=self._platform.storage.root.path)

    def is_busy(self) -> bool:
        """Return whether there is work without a live job: pending uploads, notices that are not sent yet, or jobs that
        have ended and that the hub still counts."""
        busy = self._uploader.is_busy() or self._notifier.is_busy() or self._platform.admission.is_busy()
        return busy or (self._scaler is not None and self._scaler.is_busy())

    def is_caught_up(self) -> bool:
        """Return whether the watcher has seen what happened before the daemon's start; then it calls `on_change`."""
        return self._caught_up.is_set()

    def start(self) -> None:
        """Start all threads."""
        for loop in self._all():
            loop.start()

    def poke(self) -> None:
        """Wake deployer and watcher, because a job was submitted or cancelled. Safe in every thread."""
        self._deploy_pace.poke()
        self._poked.set()
        self._deploys[-1].wake()
        self._watch.wake()

    def stop(self) -> None:
        """Ask all loops to end; return at once."""
        with self._succession:
            for loop in self._all():
                loop.stop()

    def join(self) -> None:
        """Wait for the running steps, then release the leases."""
        ends_at = time.monotonic() + STOP_S
        late = [loop for loop in self._all() if not loop.join(max(0.0, ends_at - time.monotonic()))]
        for loops, end in (
            ((self._watch, self._listen), self._watcher.close),
            ((self._uploads,), self._uploader.close),
            ((self._silence,), self._keeper.close),
            ((self._notify,), self._notifier.close),
            *([(tuple(self._scale), self._scaler.close)] if self._scaler is not None else []),
        ):
            names = ", ".join(loop.name for loop in loops)
            if any(loop in late for loop in loops):
                log.warning("a step did not end within %g s (%s); its lease expires by itself", STOP_S, names)
                continue
            try:
                end()
            except StoreError as error:
                log.warning("a lease could not be released (%s) and expires by itself: %s", names, error)

    def _all(self) -> tuple[StepThread, ...]:
        return (
            *self._deploys,
            self._watch,
            self._listen,
            self._sweep,
            self._uploads,
            self._silence,
            self._notify,
            *self._report,
            *self._scale,
        )

    def _deploy_turn(self) -> float:
        try:
            if self._deployer_failed:  # its leased jobs are blocked until the leases expire
                self._deployer_failed = False
                self._deployer.end_lost_claims()
            done = self._deployer.step(self._deploy_beside)
        except BaseException:
            self._deployer_failed = True
            raise
        if done:
            self._announce_deployed()
            self._deploys[-1].wake()  # if the step began in an earlier thread
        return self._deploy_pace.after(done)

    def _deploy_beside(self) -> bool:
        """Let another thread claim jobs, because the step of the calling one only waits for a scheduler. Return whether
        it does: not if there are DEPLOYERS of them, or the daemon ends."""
        with self._succession:
            *earlier, current = self._deploys
            running = [loop for loop in earlier if loop.is_running]
            if current.is_stopping or len(running) + 1 >= DEPLOYERS:
                return False
            successor = self._loop("deployer", self._deploy_turn)
            try:
                successor.start()
            except RuntimeError as error:
                log.warning("later submissions wait until a scheduler answers: %s", error)
                return False
            self._deploys = [*running, current, successor]
            successor.wake()  # for jobs that were submitted since its start, and woke this thread
            current.stop()
        self._announce_deployed()
        return True

    def _announce_deployed(self) -> None:
        self._poked.set()
        self._on_change()
        self._watch.wake()

    def _watch_turn(self) -> float:
        """Poll the schedulers if it is time, however long they take."""
        clock = self._platform.storage.clock
        started = clock.monotonic()
        with self._pacing:
            if self._poked.is_set():
                self._poked.clear()
                self._watch_pace.poke(started)
            full = self._watch_pace.is_full_due(started)
        changed = self._watcher.look() if full or self._watcher.is_look_due else 0
        now = clock.monotonic()
        self._announce(changed)
        with self._pacing:
            return self._watch_pace.after(full=full, changed=changed, took_s=now - started, now=now)

    def _listen_turn(self) -> float:
        """Read the events that controllers rang for, also while a scheduler does not answer."""
        changed = self._watcher.listen()
        if changed:
            self._announce(changed)
            now = self._platform.storage.clock.monotonic()
            with self._pacing:
                self._watch_pace.after(full=False, changed=changed, took_s=0.0, now=now)
        if changed or self._watcher.is_look_due:
            self._watch.wake()
        interval_s = self._platform.settings.doorbell_interval_s
        longest_s = min(interval_s, AWAITED_S) if self._is_awaited() else interval_s
        due_s = self._watcher.look_in_s
        return min(longest_s, due_s) if due_s > 0 else longest_s

    def _announce(self, changed: int) -> None:
        """Wake the loops, and the requests that wait for changes of jobs."""
        just_caught_up = self._watcher.is_caught_up and not self._caught_up.is_set()
        if just_caught_up:
            self._caught_up.set()
        if changed or just_caught_up:
            self._on_change()
        if changed:
            self._deploys[-1].wake()
            self._notify.wake()  # there may be an incident
            for loop in self._report:
                loop.wake()
            self._wake_scaler()  # a job may have been halted for another size, or have ended
            self._uploads.wake()  # an attempt may have ended with a pending upload, or after an upload

    def _uploads_turn(self) -> float:
        if self._uploader.step():
            self._on_change()
        forget_secrets(self._platform.storage)  # of ended jobs without pending uploads
        if self._uploader.is_waiting:  # the daemon that uploads now may be killed
            return min(UPLOADS_EVERY_S, self._platform.settings.lease_s / 4)
        if self._uploader.is_uploading:
            return UPLOADS_WHILE_UPLOADING_S
        return min(UPLOADS_EVERY_S, max(UPLOADS_WHILE_UPLOADING_S, self._uploader.due_in_s))

    def _silence_turn(self) -> float:
        if self._keeper.look():
            self._on_change()
            self._watch.wake()
        return look_every_s(self._platform.settings.silent_s) or LONGEST_LOOK_S

    def _wake_scaler(self) -> None:
        for loop in self._scale:
            loop.wake()

    def _scale_turn(self) -> float:
        assert self._scaler is not None  # else there is no loop
        changed, pause_s = self._scaler.step()
        if changed:
            self._on_change()
            self.poke()
        return pause_s

    def _sweep_turn(self) -> float:
        remove_expired(self._platform.storage, self._platform.settings.retention.days)
        sweep(self._platform.storage, self._platform.settings)
        return SWEEP_EVERY_S

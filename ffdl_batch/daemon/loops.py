"""The loops: threads that call one step of a service again and again, and never die silently."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from ffdl_batch.daemon.pacing import Backoff, DeployPace, WatchPace
from ffdl_batch.services.debts import DebtPayer
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.janitor import sweep
from ffdl_batch.services.platform import Platform
from ffdl_batch.services.watch import Watcher

log = logging.getLogger(__name__)

SWEEP_FIRST_S = 60.0
SWEEP_EVERY_S = 3600.0
DEBTS_FIRST_S = 5.0
DEBTS_EVERY_S = 30.0
DEBTS_WHILE_PAYING_S = 1.0
STOP_S = 15.0
"""How long a step in progress may take at the end; its lease ends by itself where it takes longer."""

Turn = Callable[[], float]
"""Does one step and says how many seconds to sleep then; :meth:`StepThread.wake` ends the sleep."""


class StepThread:
    """One loop. A turn that raises is logged with its traceback and tried again after a growing pause."""

    def __init__(self, name: str, turn: Turn, *, first_s: float = 0.0) -> None:
        self._turn = turn
        self._first_s = first_s
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._backoff = Backoff(random.random)
        # A daemon thread: a step that hangs in a dead file server must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to turn."""
        self._thread.start()

    def wake(self) -> None:
        """Turn now; without effect on a turn that runs, after which comes one more."""
        self._woken.set()

    def stop(self) -> None:
        """End after the turn that runs; returns at once."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the loop has ended within `timeout_s`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._sleep(self._first_s)
        while not self._stopping.is_set():
            self._sleep(self._one_turn())

    def _one_turn(self) -> float:
        try:
            pause = self._turn()
        except Exception:  # the thread's outermost frame: whatever it is, it is logged and the loop goes on
            pause = self._backoff.failed()
            log.exception("loop %s failed; it goes on in %.1f s", self._thread.name, pause)
            return pause
        self._backoff.succeeded()
        return pause

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._woken.wait(seconds)
        self._woken.clear()


class Loops:
    """The daemon's loops over one platform. `on_change` is called after each step that changed something."""

    def __init__(self, platform: Platform, on_change: Callable[[], None]) -> None:
        settings = platform.settings
        self._platform = platform
        self._on_change = on_change
        self._deployer, self._watcher = Deployer(platform), Watcher(platform)
        self._deploy_pace = DeployPace()
        self._watch_pace = WatchPace(settings.watch_interval_s, settings.doorbell_interval_s)
        self._deploy = StepThread("deployer", self._deploy_turn)
        self._watch = StepThread("watcher", self._watch_turn)
        self._sweep = StepThread("janitor", self._sweep_turn, first_s=SWEEP_FIRST_S)
        self._payer = DebtPayer(platform)
        self._debts = StepThread("debts", self._debts_turn, first_s=DEBTS_FIRST_S)
        self._poked = threading.Event()

    def is_busy(self) -> bool:
        """Whether there is work without a live job: results and logs of ended ones are still to be stored."""
        return self._payer.is_busy()

    def start(self) -> None:
        """Start all threads."""
        for loop in self._all():
            loop.start()

    def poke(self) -> None:
        """A job was submitted or cancelled: deploy and look without delay. Safe in every thread."""
        self._deploy_pace.poke()
        self._poked.set()
        self._deploy.wake()
        self._watch.wake()

    def stop(self) -> None:
        """Ask all loops to end; returns at once."""
        for loop in self._all():
            loop.stop()

    def join(self) -> None:
        """Wait for the steps in progress, then give the leases back."""
        late = [loop for loop in self._all() if not loop.join(STOP_S)]
        if self._watch in late:
            log.warning("the watcher's step did not end within %g s; its lease runs out by itself", STOP_S)
        else:
            self._watcher.close()
        if self._debts not in late:
            self._payer.close()

    def _all(self) -> tuple[StepThread, ...]:
        return (self._deploy, self._watch, self._sweep, self._debts)

    def _deploy_turn(self) -> float:
        done = self._deployer.step()
        if done:
            self._poked.set()
            self._on_change()
            self._watch.wake()
        return self._deploy_pace.after(done)

    def _watch_turn(self) -> float:
        clock = self._platform.clock
        started = clock.monotonic()
        if self._poked.is_set():
            self._poked.clear()
            self._watch_pace.poke(started)
        full = self._watch_pace.is_full_due(started)
        changed = self._watcher.step(full=full)
        now = clock.monotonic()
        if changed:
            self._on_change()
            self._deploy.wake()
            self._debts.wake()  # an attempt may have ended that owes results, or one that has paid
        return self._watch_pace.after(full=full, changed=changed, took_s=now - started, now=now)

    def _debts_turn(self) -> float:
        if self._payer.step():
            self._on_change()
        return DEBTS_WHILE_PAYING_S if self._payer.is_paying else DEBTS_EVERY_S

    def _sweep_turn(self) -> float:
        sweep(self._platform)
        return SWEEP_EVERY_S

"""A real daemon under a stream of submissions and cancels, killed at random; clients start it anew when they need it.

KILLS=300 makes it longer, SEED=7 repeats the pauses of a run (what happens between them stays the machine's).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from ffdl_batch.client import Client, ClientError
from ffdl_batch.client.start import Dialling
from ffdl_batch.config.locations import Holder, judge_holder, read_lock, this_machine
from ffdl_batch.domain.job_state import JobState
from tests.crash.conftest import MakeWorld
from tests.crash.world import Findings, World, WorldOptions

KILLS = int(os.environ.get("KILLS", "30"))
JOBS_PER_KILL = 1
SOONEST_S, LATEST_S = 0.0, 0.5


@dataclass
class User:
    """Submits a job now and then and cancels some; remembers what was acknowledged."""

    world: World
    chance: random.Random
    acknowledged: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    refused: int = 0

    def client(self) -> Client:
        """A new client, as a new command has."""
        return Client(dialling=Dialling(environ=self.world.environment(), patience_s=30))

    def work(self, wanted: int, stop: threading.Event) -> None:
        """`wanted` submissions, and with some of them a cancel of one of the last jobs."""
        model = self.world.base / "model"
        model.mkdir()
        (model / "train.py").write_text("print('x')\n")
        manifest = self.world.base / "manifest.yml"
        while len(self.acknowledged) < wanted and not stop.is_set():
            try:
                with self.client() as client:
                    self.acknowledged.append(client.submit(manifest, model).id)
                    if self.chance.random() < 0.3:
                        self.cancel(client)
            except ClientError:
                self.refused += 1  # the daemon died while it was asked; nothing was promised
            time.sleep(self.chance.uniform(0.1, 0.5))

    def cancel(self, client: Client) -> None:
        """Cancel one of the last jobs; it counts as wished from before the request, which may get through unheard."""
        job_id = self.chance.choice(self.acknowledged[-2:])
        self.cancelled.append(job_id)
        client.cancel(job_id)


def test_random_kills(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    world, chance = make_world(WorldOptions(life_s=3)), random.Random(seed)
    user = User(world, random.Random(seed + 1))
    with _at_work(user, KILLS * JOBS_PER_KILL):
        slowest = max(_kill_once(world, user, chance) for _ in range(KILLS))
    with user.client() as client:
        for job_id in user.acknowledged:
            client.wait(job_id, timeout_s=60)
        world.wait(lambda: all(job.state.is_terminal for job in world.jobs()), "the end of all jobs")
    findings = world.examine(user.acknowledged, cancelled=user.cancelled)
    jobs = world.jobs()
    with capsys.disabled():
        ended = sum(job.state is JobState.CANCELLED for job in jobs)
        print(
            f"\nkills {KILLS} jobs {len(jobs)} (cancelled {ended}, refused {user.refused}) lost {len(findings.lost)} "
            f"doubled {len(findings.doubled)} slowest recovery {slowest:.1f} s (seed {seed})"
        )
    assert findings == Findings(), world.diagnosis()
    assert len(user.acknowledged) >= KILLS / 5, "too few jobs were submitted for this to mean anything"


@contextmanager
def _at_work(user: User, wanted: int) -> Iterator[None]:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            user.work(wanted, stop)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failures and not thread.is_alive()


def _kill_once(world: World, user: User, chance: random.Random) -> float:
    """Let a daemon live for a moment, kill it, and return the seconds until the next one answers a client.

    The moment may end before it serves: the lock names it earlier.
    """
    with user.client() as client:
        client.health()
    time.sleep(chance.uniform(SOONEST_S, LATEST_S))
    os.kill(_living_daemon(world), signal.SIGKILL)
    killed = time.monotonic()
    if chance.random() < 0.2:
        threading.Thread(target=_ask, args=(user, killed), daemon=True).start()  # somebody who starts the next one
        os.kill(_living_daemon(world), signal.SIGKILL)
    return _ask(user, killed)


def _ask(user: User, since: float) -> float:
    """Seconds from `since` until a daemon has answered."""
    while True:
        try:
            with user.client() as client:
                client.health()
            return time.monotonic() - since
        except ClientError:
            assert time.monotonic() - since < 60, user.world.diagnosis()


def _living_daemon(world: World) -> int:
    """The process that the lock names, as soon as there is one that lives."""
    found: list[int] = []

    def look() -> bool:
        lock = read_lock(world.state)
        if lock and judge_holder(lock, this_machine()) is Holder.ALIVE_HERE:
            found.append(lock.pid)
        return bool(found)

    world.wait(look, "a living daemon")
    return found[0]

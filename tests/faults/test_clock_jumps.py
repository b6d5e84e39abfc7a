"""Clocks that somebody sets by an hour, forth and back, on the daemon's host and on a node. Monotonic clocks go on, and
so do the times of files, which the file server gives."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.contract.controller_rig import ROOT
from tests.crash.world import WorldOptions
from tests.faults.fault_rig import FaultWorld, fault_world

HOUR_S = 3600


@dataclass(frozen=True)
class Turned:
    """A Python whose wall clock is as many seconds ahead as was said last."""

    python: Path

    def make(self) -> None:
        """Make it; its clock is right."""
        self.jump(0)
        program = ROOT / "tests" / "fakes" / "turned_clock.py"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} {self._said} {self.python} "$@"\n')
        self.python.chmod(0o755)

    def jump(self, seconds: int) -> None:
        """Set the clock of every process that it runs."""
        fresh = self._said.with_suffix(".fresh")
        fresh.write_text(str(seconds))
        fresh.replace(self._said)

    @property
    def _said(self) -> Path:
        return self.python.with_suffix(".said")


def turned(path: Path) -> Turned:
    """One that is right yet."""
    made = Turned(path)
    made.make()
    return made


def times(world: FaultWorld, job_id: str) -> list[float]:
    """When the job changed."""
    with world.client() as client:
        return [event.at for event in client.events(job_id)]


def test_jobs_neither_end_nor_stall_when_clocks_jump_by_an_hour(tmp_path: Path) -> None:
    """The daemon's host back, with a job that is put off, and forward again; the node forward, back, and back."""
    host, node = turned(tmp_path / "host"), turned(tmp_path / "node")
    with fault_world(tmp_path, WorldOptions("slurm", python=str(node.python))) as world:
        world.python = str(host.python)
        world.start()
        running = world.submit_running()
        world.spoil("sbatch", "down:always")
        waiting = world.submit()
        world.wait(lambda: "does not answer" in world.job(waiting).pending_reason, "a job that is put off")
        host.jump(-HOUR_S)
        node.jump(HOUR_S)
        world.spoil("sbatch")
        world.await_ends(waiting)
        world.await_ends(world.submit())
        assert world.job(running).state == "PROCESSING"
        host.jump(0)
        node.jump(0)
        late = world.submit()
        world.await_ends(late)
        assert world.job(running).state == "PROCESSING"
        node.jump(-HOUR_S)
        world.tell()
        world.await_ends(running)
        for job_id in (running, waiting, late):
            assert times(world, job_id) == sorted(times(world, job_id))
        assert world.stop() == os.EX_OK
        assert "Traceback" not in world.log and "did not end within" not in world.log

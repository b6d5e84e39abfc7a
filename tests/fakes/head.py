"""What a head controller leaves on disk, written by a test in its place."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import JobDir, Root
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job.job import Job
from ffdl_batch.domain.launch.launch_file import decode, encode, succeed
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.outcome.controller_events import (
    Event,
    EventKind,
    FinalRecord,
    GoesOn,
    Outcome,
    Scalar,
    encode_event,
)
from ffdl_batch.host.fast_dataclass import dataclass


@dataclass
class FakeHead:
    """The controllers of one attempt of one job. `at` is their clock."""

    root: Root
    job: Job
    at: float

    @property
    def directory(self) -> JobDir:
        return self.root.job(self.job.id)

    def says(self, source: str, kind: EventKind, **fields: Scalar) -> None:
        """Append one event and ring the bell."""
        path = Path(self.directory.attempt(self.job.attempt).event_file(source))
        lines = path.read_text().count("\n") if path.exists() else 0
        with path.open("a") as file:
            file.write(encode_event(Event(lines + 1, self.at, source, kind, fields)))
        Path(self.root.doorbell, self.job.id).touch()

    def starts(self, restart: int = 0, host: str = "n1") -> None:
        """Claim, start the learner, let it live."""
        attempt = self.directory.attempt(self.job.attempt)
        self.says("head", EventKind.CLAIMED, native_id=self.job.native_id, restart=restart)
        self.says("node-0", EventKind.STARTED, host=host)
        self.says("node-0", EventKind.LEARNER_STARTED, learner_id=1)
        Path(attempt.state, ".began-1").write_text("7\n")
        self.beats()

    def beats(self, node_rank: int = 0) -> None:
        """A node controller lives."""
        heartbeat = Path(self.directory.attempt(self.job.attempt).heartbeat(node_rank))
        heartbeat.touch()
        os.utime(heartbeat, (self.at, self.at))

    def saves(self, name: str = "model.pt") -> None:
        """The learner writes a checkpoint."""
        Path(self.directory.checkpoints, name).write_text("weights")

    def stores(self) -> None:
        """The learner ends with 0 and is stored."""
        self.says("node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=0)
        self.says("node-0", EventKind.STORED, learner_id=1)

    def is_killed_storing(self, status: int = 0) -> None:
        """The learner ends of itself; everybody is killed before what it left is stored."""
        self.says("node-0", EventKind.LEARNER_ENDED, learner_id=1, exit_code=status, ended_by="", asked="")
        self.says("node-0", EventKind.PHASE, phase="store-results", status="started")

    def ends(self, outcome: Outcome, **values: object) -> None:
        """Write the final record."""
        record = FinalRecord(self.job.native_id, outcome, self.at, stored=True)
        text = json.dumps(to_plain(replace(record, **values)))  # type: ignore[arg-type]
        write_text(self.directory.attempt(self.job.attempt).final, text)
        self.says("head", EventKind.FINAL, outcome=outcome.value)
        self.says("node-0", EventKind.ENDED)

    def begins_successor(self) -> None:
        """Fill the template and mark its submission as begun, as the head does at a time limit."""
        number = self.job.attempt + 1
        template, target = self.directory.template, self.directory.attempt(number)
        for made in (target.path, target.submit, target.events, target.state, target.results, target.logs):
            Path(made).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in Path(template.path).iterdir():
            write_text(Path(target.path, path.name), succeed(path.read_text(), self.job.id, number), 0o700)
        launch = decode(Path(target.launch).read_text())
        write_text(target.launch, encode(replace(launch, attempt=number)))
        write_text(target.submit_begun, "begun\n")
        os.utime(target.submit_begun, (self.at, self.at))

    def goes_on(self, spent: Spent | None = None) -> None:
        """A time limit with a confirmed checkpoint, after which the head went on alone."""
        self.begins_successor()
        self.ends(
            Outcome.HALTED,
            interruption="timeout",
            checkpoint=Checkpoint(asked=True, confirmed=True, answered=True, took_s=3.0, saved_at=self.at),
            goes_on=GoesOn.SUCCESSOR,
            spent=spent or Spent(timeouts=1),
            message="the time limit was reached; checkpoint confirmed after 3.0 s",
            gpu_seconds=60.0,
        )

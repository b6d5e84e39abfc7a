"""Makes a database with jobs in every state by the code of a release, and writes down what that release has in it.

    PYTHONPATH=<release>:<release>/adapters python3 tests/captured/capture_schema.py tests/captured/schemas

writes ``<revision>.sql`` (SQLite's own dump) and ``<revision>.json`` (jobs, attempts and histories as that release
reads them). It uses what every release's store has, so it runs with old ones; it is not run with this one, whose schema
may still change.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.job import job as jobs
from ffdl_batch.domain.job.job import Change, Job, JobId
from ffdl_batch.domain.job_state import JobState as S
from ffdl_batch.domain.job_state import Wish
from ffdl_batch.manifest import ManifestSource, parse_manifest
from ffdl_batch.store import NewJob, Store, open_store
from ffdl_batch.store.schema_upgrade import HEAD

HAS_CHAINS = hasattr(Store, "owed_attempts")
MANIFEST = """\
name: "digits \N{LATIN SMALL LETTER U WITH DIAERESIS}'%(x)s"
description: A network, \N{GREEK SMALL LETTER ALPHA} and "quotes"
version: "1.10"
cpus: 4
gpus: 2
memory: 16GiB
learners: 2
data_stores:
  - id: here
    type: mount_volume
    training_data: {container: data}
    training_results: {container: results}
    connection: {type: host_mount, path: /scratch}
framework:
  name: custom
  version: /images/own.sif
  command: |
    python3 train.py --name 'a b' \\
      --epochs 3
batch:
  time: 2-04:00:00
  partition: gpu
  env: {LEVEL: "high % low", EMPTY: ""}
"""
NASTY = "line one\nline two: 100 % 'quoted' \"twice\" \\ back, NUL \x00, byte \udc80"


class Clock:
    """Stands where it is told."""

    at = 1700000000.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """The same here."""
        return self.at


class Maker:
    """Makes one job after the other; their names say what became of them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.ids: dict[str, JobId] = {}
        parsed = parse_manifest(ManifestSource(MANIFEST, "manifest.yml", "/home/ada"))
        assert parsed.spec is not None, parsed.findings
        self._spec = parsed.spec

    def add(self, what: str, key: str = "", warnings: tuple[str, ...] = ()) -> Job:
        """A new job."""
        job_id = JobId(f"training-{len(self.ids):09d}")
        self.ids[what] = job_id
        self._clock.at += 10
        new = NewJob(job_id, 1000, "ada", self._spec, "slurm", key, "5" * 64, self._clock.at, warnings)
        return self._store.add_jobs([new])[0]

    def deploying(self, what: str) -> tuple[Job, str]:
        """A job in its first attempt, and its lease."""
        job = self.add(what)
        leased = [
            one for one in self._store.claim_deployable("login1:/state", limit=99, lease_s=60) if one.job.id == job.id
        ]
        begun = self._store.begin_attempt(job, leased[0].lease_token, self._clock.at + 1)
        assert begun is not None
        return begun, leased[0].lease_token

    def deployed(self, what: str, *states: S) -> Job:
        """A job that the scheduler has."""
        job, token = self.deploying(what)
        columns = {"native_id": str(4000 + len(self.ids)), "network": "none", "results": "/scratch/results/" + job.id}
        job = self.change(job, [S.QUEUED], columns=columns | {"pending_reason": "Resources"}, lease_token=token)
        for state in states:
            job = self.change(job, [state], columns={"nodes": "n[1-2]", "pending_reason": ""})
        return job

    def change(self, job: Job, states: list[S], lease_token: str | None = None, **values: Any) -> Job:
        """Pass through `states`, a second apart."""
        steps = []
        for state in states:
            self._clock.at += 1
            steps.append((state, self._clock.at))
        after = self._store.apply(job, Change(steps=tuple(steps), **values), lease_token=lease_token)
        assert after is not None, job
        return after


def fill(store: Store, clock: Clock) -> dict[str, JobId]:
    """Jobs in every state; their ids by what they are."""
    make = Maker(store, clock)
    make.add("pending", key="first", warnings=("a warning",))
    refused, token = make.deploying("refused")
    make.change(refused, [S.FAILED], error_code="S101", message=NASTY, lease_token=token)
    uncertain, token = make.deploying("uncertain")
    make.change(uncertain, [], columns={"uncertain_since": clock.at}, lease_token=token)
    make.deployed("queued")
    make.deployed("downloading", S.DOWNLOADING)
    make.deployed("processing", S.DOWNLOADING, S.PROCESSING)
    store.set_wish(make.deployed("halting", S.PROCESSING).id, Wish.HALT)
    store.set_wish(make.deployed("cancelling", S.PROCESSING).id, Wish.CANCEL)
    make.deployed("storing", S.DOWNLOADING, S.PROCESSING, S.STORING)
    done = make.deployed("completed", S.PROCESSING, S.STORING)
    make.change(done, [S.COMPLETED], columns={"exit_code": 0, "log_tail": ("epoch 3", NASTY)})
    failed = make.deployed("failed", S.PROCESSING)
    ended = {"exit_signal": 9, "warnings": ("w1", "w2")}
    make.change(failed, [S.FAILED], error_code="C202", message="out of memory", columns=ended)
    make.change(make.deployed("halted", S.PROCESSING), [S.HALTED], message="halted on request")
    make.change(make.add("cancelled in the queue"), [S.CANCELLED], message="cancelled")
    make.change(make.deployed("cancelled", S.PROCESSING), [S.CANCELLED], columns={"exit_code": 143})
    again = make.change(make.deployed("requeued", S.PROCESSING), [S.QUEUED], cause="requeued", message="node failed")
    make.change(again, [S.PROCESSING])
    if HAS_CHAINS:
        fill_chains(store, make)
    store.acquire_lease("watcher", "login1:/state", 60.0)
    make.add("leased")
    store.claim_deployable("login1:/state", limit=99, lease_s=60)
    make.add("newest", key="last")
    return make.ids


def fill_chains(store: Store, make: Maker) -> None:
    """What jobs can be since attempts follow one another."""
    from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent

    saved = Checkpoint(
        asked=True, confirmed=True, answered=True, took_s=4.5, saved_at=1700000099.25, newest="a\u00fc.pt"
    )
    spent = Spent(timeouts=1, gpu_seconds=7200.5, fruitless=1)
    end = getattr(jobs, "AttemptEnd")("timeout", saved, 7200.5, True)  # noqa: B009 - older releases have none
    job = make.deployed("gone on by its head", S.PROCESSING)
    make.change(job, [S.DEPLOYING], cause="requeued", message="the time limit was reached", error_code="C203",
                columns={"spent": spent}, attempt_end=end, succeeded=True)  # fmt: skip
    job = make.deployed("preempted", S.PROCESSING)
    overrides = getattr(jobs, "Overrides")(exclude=("n7",))  # noqa: B009
    make.change(
        job, [S.PENDING], cause="requeued", error_code="S111", columns={"overrides": overrides}, attempt_end=end
    )
    job = make.change(make.deployed("resumed", S.PROCESSING), [S.HALTED], message="halted on request", attempt_end=end)
    make.change(job, [S.PENDING], cause="resumed", columns={"overrides": getattr(jobs, "Overrides")(1.0, 600)})  # noqa: B009
    job = make.change(make.deployed("paid"), [S.FAILED], error_code="C201", attempt_end=end)
    assert store.note_paid(job.id, 1)


def plain(value: Any) -> Any:
    """What a release reads, without what only the store knows of leases."""
    return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}


def main() -> None:
    """Write both files."""
    target, clock = Path(sys.argv[1]), Clock()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "jobs.sqlite3"
        store = open_store(f"sqlite:///{file}", clock=clock)
        ids = fill(store, clock)
        jobs_read = [plain(job) for job in store.get_many(list(ids.values()))]
        spec = jobs_read[0]["spec"]
        assert all(job.pop("spec") == spec for job in jobs_read)
        read = {
            "names": ids,
            "spec": spec,
            "jobs": jobs_read,
            "attempts": {job_id: [plain(one) for one in store.attempts(job_id)] for job_id in ids.values()},
            "histories": {job_id: [plain(one) for one in store.history(job_id)] for job_id in ids.values()},
        }
        store.close()
        connection = sqlite3.connect(file)
        (target / f"{HEAD}.sql").write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8")
        connection.close()
    (target / f"{HEAD}.json").write_text(json.dumps(read, indent=1) + "\n", encoding="ascii")
    print(f"revision {HEAD}: {len(ids)} jobs")


if __name__ == "__main__":
    main()

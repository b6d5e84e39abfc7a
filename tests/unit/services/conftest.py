"""A platform on SQLite and on PostgreSQL, with a clock and a scheduler that tests turn."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ffdl_batch.config import load_settings
from ffdl_batch.domain.events import Event, EventKind, FinalRecord, Outcome, encode_event
from ffdl_batch.domain.job import Job
from ffdl_batch.domain.jobdir import AttemptDir, Root
from ffdl_batch.domain.submission import Submission
from ffdl_batch.ports.registry import AdapterContext
from ffdl_batch.services.archives import receive_archive
from ffdl_batch.services.backends import Adapters
from ffdl_batch.services.deploy import Deployer
from ffdl_batch.services.platform import Caller, Platform
from ffdl_batch.services.submit import submit
from ffdl_batch.services.watch import Watcher
from ffdl_batch.services.whole_files import write_whole
from ffdl_batch.store import open_store
from tests.conftest import POSTGRES
from tests.fakes.clock import FakeClock
from tests.fakes.scheduler import FakeScheduler

if TYPE_CHECKING:
    from tests.postgres import TurnedServerClock

MANIFEST = """\
name: digits
gpus: 1
framework:
  name: custom
  version: python-numpy
  command: python3 train.py
"""


def model_zip(files: dict[str, str] | None = None) -> bytes:
    """A model archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in (files or {"train.py": "print('x')\n"}).items():
            archive.writestr(name, text)
    return buffer.getvalue()


@dataclass
class Site:
    """A platform and the things that tests turn."""

    platform: Platform
    clock: FakeClock
    scheduler: FakeScheduler
    caller: Caller
    archive: str

    def submission(self, key: str, manifest: str = MANIFEST, **changes: object) -> Submission:
        base = Submission(manifest, "manifest.yml", "/nowhere", self.archive, key, backend="fake")
        return replace(base, **changes)  # type: ignore[arg-type]

    def accept(self, key: str = "k1", manifest: str = MANIFEST) -> Job:
        """Submit one job that is surely accepted."""
        (result,) = submit(self.platform, self.caller, [self.submission(key, manifest)])
        assert result.problem is None, result.problem
        return self.job(result.id)

    def job(self, job_id: str) -> Job:
        found = self.platform.store.get(job_id)
        assert found is not None
        return found

    def deployed(self, key: str = "k1") -> Job:
        """Submit and deploy one job."""
        job = self.accept(key)
        Deployer(self.platform).step()
        return self.job(job.id)

    def attempt(self, job: Job) -> AttemptDir:
        return self.platform.root.job(job.id).attempt(max(1, job.attempt))

    def states(self, job: Job) -> list[str]:
        return [str(entry.state) for entry in self.platform.store.history(job.id)]


@pytest.fixture(params=["sqlite", POSTGRES])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    environ = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / "state")}
    clock = FakeClock()
    if request.param == "postgresql":
        server_clock: TurnedServerClock = request.getfixturevalue("server_clock")
        environ["FFDL_DATABASE_URL"], clock = server_clock.url, server_clock
    settings = load_settings(cwd=tmp_path, environ=environ)
    scheduler = FakeScheduler()
    root = Root(settings.jobs_dir)
    for directory in (root.path, root.doorbell, root.models, str(Path(root.path) / "jobs")):
        Path(directory).mkdir(parents=True, exist_ok=True)
    store = open_store(settings.database, network_fs=False, clock=clock)
    adapters = Adapters(settings, AdapterContext(root.path, "alice", os.getuid()), clock)
    adapters.use("fake", scheduler)
    platform = Platform(
        settings, store, clock, root, "alice", os.getuid(), adapters, owner="test", file_time=lambda _: clock.now()
    )
    data = model_zip()
    digest = hashlib.sha256(data).hexdigest()
    receive_archive(platform, digest, [data])
    yield Site(platform, clock, scheduler, Caller(os.getuid()), digest)
    platform.close()


def write_events(site: Site, job: Job, kinds: list[tuple[str, float]]) -> None:
    """What a node controller would write, and the bell it would ring."""
    attempt = site.attempt(job)
    events = [
        Event(i, at, "node-0", EventKind.PHASE, {"phase": phase, "status": "started"})
        for i, (phase, at) in enumerate(kinds, 1)
    ]
    Path(attempt.events, "node-0.jsonl").write_text("".join(map(encode_event, events)))
    Path(site.platform.root.doorbell, job.id).touch()


def write_final(site: Site, job: Job, outcome: Outcome = Outcome.COMPLETED, **values: object) -> None:
    """What a head would write last."""
    import json

    from ffdl_batch.domain.codec import to_plain

    record = FinalRecord(job.native_id, outcome, site.clock.now(), stored=True, exit_code=0)
    write_whole(Path(site.attempt(job).final), json.dumps(to_plain(replace(record, **values))))  # type: ignore[arg-type]


@pytest.fixture
def watcher(site: Site) -> Iterator[Watcher]:
    made = Watcher(site.platform)
    yield made
    made.close()

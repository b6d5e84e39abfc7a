"""A platform on SQLite and on PostgreSQL, with a clock and a scheduler that tests turn."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ffdl_batch.attempt import rotated_files
from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.attempt.reader import open_regular
from ffdl_batch.config import load_settings
from ffdl_batch.daemon.platform import Platform
from ffdl_batch.domain.job.job import Change, Job
from ffdl_batch.domain.job.log_text import LogText
from ffdl_batch.domain.job.submission import Caller, Submission, SubmissionResult
from ffdl_batch.domain.job.views import JobView, LogLine, Problem
from ffdl_batch.domain.job_state import Cause, JobState
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, FinalRecord, Outcome, encode_event
from ffdl_batch.domain.outcome.observation import EndCause, NativeId
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.plugins import AdapterContext
from ffdl_batch.services.backends.adapters import Adapters
from ffdl_batch.services.data.model_archives import receive_archive
from ffdl_batch.services.job_files.element_directory import make_directories
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.logs.log_stream import LogQuery, read_texts
from ffdl_batch.services.monitoring.watcher import Watcher
from ffdl_batch.services.queries.jobs import get_job
from ffdl_batch.services.submission.submit import submit
from tests.conftest import POSTGRES
from tests.fakes.arrays import ArrayScheduler
from tests.fakes.clock import FakeClock
from tests.fakes.head import FakeHead
from tests.fakes.scheduler import FakeScheduler
from tests.first_start import new_store

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

    def set_settings(self, **changes: Any) -> None:
        """Give the services that are made from now on other settings."""
        settings = replace(self.platform.settings, **changes)
        self.platform.adapters.settings = settings
        self.platform = replace(self.platform, settings=settings)

    def submission(self, key: str, manifest: str = MANIFEST, **changes: object) -> Submission:
        base = Submission(manifest, "manifest.yml", "/nowhere", self.archive, key, backend="fake")
        return replace(base, **changes)  # type: ignore[arg-type]

    def send(self, key: str = "k1", manifest: str = MANIFEST, **changes: object) -> SubmissionResult:
        """Submit one job, whatever comes of it."""
        (result,) = submit(
            self.platform.storage,
            self.platform.adapters,
            self.platform.store_checks,
            self.caller,
            [self.submission(key, manifest, **changes)],
        )
        return result

    def accept(self, key: str = "k1", manifest: str = MANIFEST, **changes: object) -> Job:
        """Submit one job that is surely accepted."""
        result = self.send(key, manifest, **changes)
        assert result.problem is None, result.problem
        return self.job(result.id)

    def accept_all(self, count: int) -> list[Job]:
        """Submit this many jobs, which are surely accepted, in one request."""
        results = submit(
            self.platform.storage,
            self.platform.adapters,
            self.platform.store_checks,
            self.caller,
            [self.submission(f"k{number}") for number in range(count)],
        )
        return [self.job(result.id) for result in results]

    def problem(self, key: str = "k1", manifest: str = MANIFEST, **changes: object) -> Problem:
        """Submit one job that is surely rejected."""
        found = self.send(key, manifest, **changes).problem
        assert found is not None
        return found

    def job(self, job_id: str) -> Job:
        found = self.platform.storage.store.get(job_id)
        assert found is not None
        return found

    def deployed(self, key: str = "k1") -> Job:
        """Submit and deploy one job."""
        job = self.accept(key)
        self.deploy()
        return self.job(job.id)

    def deploy(self) -> int:
        """Let a new deployer make one step."""
        return self.platform.deployer().step()

    @cached_property
    def watcher(self) -> Watcher:
        return self.platform.watcher()

    def watch(self, *, full: bool = True) -> int:
        """Let the watcher make one step."""
        return self.watcher.step(full=full)

    def end(self, job: Job, cause: EndCause, started: float | None = 1.0) -> Job:
        """Let the scheduler end the job's attempt, and let the watcher see it."""
        self.scheduler.end(NativeId.parse(job.native_id), cause, self.clock.now(), started)
        self.watch()
        return self.job(job.id)

    def head(self, job: Job) -> FakeHead:
        """The head controller of the job's current attempt."""
        return FakeHead(self.platform.storage.root, self.job(job.id), self.clock.now())

    def move(self, job: Job, *states: JobState, cause: Cause = Cause.PROGRESS, **fields: Any) -> Job:
        """Write that the job passed through these states now, and the other fields of a `Change`."""
        steps = tuple((state, self.clock.now()) for state in states)
        updated = self.platform.storage.store.apply(job, Change(steps, cause, **fields))
        assert updated is not None
        return updated

    def view(self, job: Job) -> JobView:
        return get_job(self.platform.storage, self.platform.adapters, self.caller, job.id)

    def log_lines(self, job_id: str, **query: Any) -> list[LogLine]:
        """Return the lines that a reader gets."""
        found = read_texts(self.platform.storage, self.platform.followed_jobs, self.caller, job_id, LogQuery(**query))
        return [line for text in found if isinstance(text, LogText) for line in text.lines()]

    def attempt(self, job: Job) -> AttemptDir:
        return self.platform.storage.root.job(job.id).attempt(max(1, job.attempt))

    def states(self, job: Job) -> list[str]:
        return [str(entry.state) for entry in self.platform.storage.store.history(job.id)]


@pytest.fixture(params=["sqlite", POSTGRES])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    environ = {"HOME": str(tmp_path), "FFDL_STATE_DIR": str(tmp_path / "state")}
    server: TurnedServerClock | None = None
    if request.param == "postgresql":
        server = request.getfixturevalue("server_clock")
        environ["FFDL_DATABASE_URL"] = server.database.url
    clock = server or FakeClock()
    settings = load_settings(cwd=tmp_path, environ=environ)
    scheduler = FakeScheduler()
    root = Root(settings.jobs_dir)
    for directory in (root.path, root.doorbell, root.models, str(Path(root.path) / "jobs")):
        Path(directory).mkdir(parents=True, exist_ok=True)
    store = server.database.open(server) if server else new_store(tmp_path / "state" / "ffdl.sqlite3", clock)
    adapters = Adapters(settings, AdapterContext(root.path, "alice", os.getuid()), clock)
    adapters.use("fake", scheduler)
    storage = JobStorage(store, root, clock, "alice", os.getuid(), file_time=lambda _: clock.now())
    platform = Platform(settings, storage, adapters, owner="test")
    data = model_zip()
    digest = hashlib.sha256(data).hexdigest()
    receive_archive(platform.storage.root, digest, [data])
    made = Site(platform, clock, scheduler, Caller(os.getuid()), digest)
    yield made
    if "watcher" in vars(made):
        made.watcher.close()
    platform.close()


def with_file_time(platform: Platform, file_time: Callable[[str], float]) -> Platform:
    """The platform of a host where the file server has another clock."""
    return replace(platform, storage=replace(platform.storage, file_time=file_time))


def manifest(batch: str) -> str:
    """The usual manifest with a `batch:` block."""
    return f"{MANIFEST}batch: {{{batch}}}\n"


@dataclass
class ArraySite:
    """A site and its scheduler by its own type."""

    site: Site
    scheduler: ArrayScheduler

    def send(self, batch: str, key: str = "k1", **changes: object) -> SubmissionResult:
        """Submit one manifest, whatever comes of it."""
        submission = self.site.submission(key, manifest(batch), **changes)
        (result,) = submit(
            self.site.platform.storage,
            self.site.platform.adapters,
            self.site.platform.store_checks,
            self.site.caller,
            [submission],
        )
        return result

    def accept(self, batch: str, key: str = "k1", **changes: object) -> str:
        """Submit one array that is surely accepted; its id."""
        result = self.send(batch, key, **changes)
        assert result.problem is None, result.problem
        return result.id

    def elements(self, array: str) -> list[Job]:
        """Its jobs, by index."""
        return self.site.platform.storage.store.elements_of(array)

    def states(self, array: str) -> list[JobState]:
        """Their states."""
        return [job.state for job in self.elements(array)]

    def deploy(self, times: int = 1) -> None:
        """So many steps of a deployer of its own."""
        deployer = self.site.platform.deployer()
        for _ in range(times):
            deployer.step()

    def start(self, job: Job) -> AttemptDir:
        """Make the directory of an element, as its task does when it starts; the attempt's."""
        make_directories(self.site.platform.storage.root, [job])
        return self.site.attempt(job)

    @property
    def sizes(self) -> Sequence[int]:
        """How many tasks each accepted native array has."""
        return [len(plan.tasks) for plan in self.scheduler.arrays]


def with_arrays(site: Site) -> ArraySite:
    """The site with a scheduler that takes arrays."""
    scheduler = ArrayScheduler()
    site.scheduler = scheduler
    site.platform.adapters.use("fake", scheduler)
    return ArraySite(site, scheduler)


@pytest.fixture
def fleet(site: Site) -> ArraySite:
    return with_arrays(site)


def write_events(site: Site, job: Job, kinds: list[tuple[str, float]]) -> None:
    """What a node controller would write, and the bell it would ring."""
    attempt = site.attempt(job)
    events = [
        Event(i, at, "node-0", EventKind.PHASE, {"phase": phase, "status": "started"})
        for i, (phase, at) in enumerate(kinds, 1)
    ]
    Path(attempt.events, "node-0.jsonl").write_text("".join(map(encode_event, events)))
    Path(site.platform.storage.root.doorbell, job.id).touch()


def write_final(site: Site, job: Job, outcome: Outcome = Outcome.COMPLETED, **values: object) -> None:
    """What a head would write last."""
    import json

    from ffdl_batch.domain.codec import to_plain

    record = FinalRecord(job.native_id, outcome, site.clock.now(), stored=True, exit_code=0)
    write_text(site.attempt(job).final, json.dumps(to_plain(replace(record, **values))))  # type: ignore[arg-type]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes of logs were read."""
    count = [0]

    class Counted:
        def __init__(self, path: str) -> None:
            self.file = open_regular(path)

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

        def read(self, size: int) -> bytes:
            data = self.file.read(size)
            count[0] += len(data)
            return data

    monkeypatch.setattr(rotated_files, "open_regular", Counted)
    yield count

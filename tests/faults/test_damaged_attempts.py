"""Damages files of running, ending and ended attempts: other jobs complete, and the daemon answers requests for all."""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir, Root
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_local.launch_plan import BACKEND
from ffdl_local.records import EXIT, JOB_FILE, LOCK, STARTED, STATE, local_directory
from tests.contract.daemon_rig import PLAIN, Site, site_in, until
from tests.planted_files import NO_FILES, NO_JSON, replace

ARGUMENTS: dict[str, object] = {"source": "node-0", "run": 2, "learner_id": 1, "node_rank": 0, "name": "load-1"}
"""Arguments for functions of AttemptDir, by the names of their parameters."""
LEARNERS_OWN = (".began-1", ".ended-1", "learner.exit", "learner.start", "halt")
VICTIMS = 5
"""Number of jobs whose files are damaged at the same time."""
MOST_RESIDENT_KIB = 1024**2
"""Memory limit. A daemon uses some 150 MiB. One that reads a device to its end uses all memory."""
MANIFEST = """\
name: {name}
framework:
  name: custom
  version: python-numpy
  command: 'echo begun; until [ -e "{finish}" ]; do sleep 0.05; done; exit {status}'
cpus: 1
memory: 100MB
evaluation_metrics:
  type: emetrics_file
"""


def places(attempt: AttemptDir, among: random.Random) -> list[Path]:
    """Return all paths that an attempt may have by their names in jobdir.py, and all that it has."""
    named = []
    for name, member in vars(AttemptDir).items():
        if isinstance(member, property):
            named.append(getattr(attempt, name))
        elif inspect.isfunction(member) and not name.startswith("_"):
            named.append(member(attempt, *(ARGUMENTS[one] for one in list(inspect.signature(member).parameters)[1:])))
    own = local_directory(attempt.path)
    named += [own / name for name in (EXIT, JOB_FILE, LOCK, STARTED, STATE)]
    named += [Path(attempt.state, name) for name in LEARNERS_OWN]
    found = [Path(directory, name) for directory, _, names in os.walk(attempt.path) for name in names]
    paths = {Path(path) for path in named} - {Path(attempt.path)}
    return among.sample(sorted(paths | set(found)), k=len(paths | set(found)))


def mode_and_size(path: Path) -> tuple[int, int]:
    """Return the status of the path; zeros if it does not exist."""
    try:
        found = path.lstat()
    except OSError:  # it is missing, or its parent is not a directory
        return 0, 0
    return found.st_mode, found.st_size


def flip(path: Path, among: random.Random) -> None:
    """Change some bytes of a file."""
    content = bytearray(path.read_bytes())
    for _ in range(min(len(content), 8)):
        content[among.randrange(len(content))] = among.randrange(256)
    path.write_bytes(content)


def damage(path: Path, among: random.Random) -> str:
    """Damage one file in some way and return what was done."""
    changes: dict[str, Callable[[], object]] = {
        kind: partial(replace, path, plant) for kind, plant in {**NO_FILES, **NO_JSON}.items()
    }
    mode, size = mode_and_size(path)
    changes["removed"] = lambda: shutil.rmtree(path) if stat.S_ISDIR(mode) else path.unlink()
    if stat.S_ISREG(mode) and size < 1 << 20:
        changes["cut"] = lambda: os.truncate(path, among.randrange(size + 1))
        changes["flipped"] = lambda: flip(path, among)
        changes["more"] = lambda: path.write_bytes(path.read_bytes() + among.randbytes(100))
    if path.name.startswith("training-log"):
        del changes["sparse"]  # `ffdl logs` prints all of a log, however long
    kind = among.choice(sorted(changes))
    with suppress(OSError):  # a parent directory was damaged before, or the job changed it first
        changes[kind]()
    return f"{path.relative_to(path.parents[1])}: {kind}"


@dataclass
class Fuzz:
    site: Site
    base: Path
    seed: int

    def __post_init__(self) -> None:
        self.among = random.Random(self.seed)
        self.done: list[str] = []

    def submit(self, name: str, status: int = 0) -> str:
        manifest = self.base / f"{name}.yml"
        manifest.write_text(MANIFEST.format(name=name, finish=self.base / f"finish-{name}", status=status))
        return self.site.run("submit", "--parsable", str(manifest), str(self.base / "model")).strip()

    def finish(self, name: str) -> None:
        (self.base / f"finish-{name}").touch()

    def state(self, job_id: str) -> JobState:
        return JobState(self.site.state_of(job_id))

    def await_state(self, job_id: str, is_it: Callable[[JobState], bool]) -> None:
        until(lambda: is_it(self.state(job_id)), lambda: f"{job_id}, which is {self.state(job_id)}: {self.explain()}")

    def explain(self) -> str:
        shown = "".join(self.site.try_to("list", "--limit", "1000").stdout)
        return f"seed {self.seed}\n" + "\n".join(self.done) + f"\n{shown}{self.site.log}"

    def damage(self, job_id: str, count: int) -> None:
        attempt = Root(str(self.site.state)).job(job_id).attempt(1)
        for path in places(attempt, self.among)[:count]:
            self.done.append(f"{job_id} {self.state(job_id)} {damage(path, self.among)}")

    def ask_all(self, job_id: str) -> None:
        """Check that each command answers, or refuses in a sentence."""
        for words in (("show",), ("logs",), ("metrics",), ("metrics", "--usage"), ("why",)):
            answered = self.site.try_to(*words, job_id)
            failed = "Traceback" in answered.stderr or "daemon failed" in answered.stderr
            assert not failed, f"{words} {answered.returncode} {answered.stderr}\n{self.explain()}"
        assert json.loads(self.site.run("show", "--json", job_id))["job"]["id"] == job_id


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").touch()
    config = tmp_path / "ffdl.toml"
    config.write_text(f"[backend.{BACKEND}]\nmax_jobs = {VICTIMS + 1}\n")
    with site_in(tmp_path, more_environment={"FFDL_BACKEND": BACKEND, "FFDL_CONFIG": str(config)}) as made:
        made.start(program=PLAIN)
        try:
            yield made
        finally:
            for job in json.loads(made.run("list", "--json"))["jobs"]:
                made.try_to("cancel", job["id"])
                made.try_to("wait", "--timeout", "60", job["id"])


@pytest.mark.parametrize("mutations", [50, pytest.param(500, marks=pytest.mark.full)])
def test_job_completes_and_daemon_answers_while_files_of_other_jobs_are_damaged(
    site: Site, tmp_path: Path, mutations: int
) -> None:
    fuzz = Fuzz(site, tmp_path, seed=int(os.environ.get("FFDL_TEST_SEED", mutations)))
    healthy = fuzz.submit("healthy")
    each = 10
    for wave in range(mutations // (VICTIMS * each)):
        names = [f"v{wave}-{number}" for number in range(VICTIMS)]
        victims = {name: fuzz.submit(name, status=3 * (number % 2)) for number, name in enumerate(names)}
        for job_id in victims.values():
            fuzz.await_state(job_id, lambda state: state is JobState.PROCESSING)
            fuzz.damage(job_id, 4)
        for name, job_id in victims.items():
            fuzz.finish(name)
            fuzz.damage(job_id, 3)
        for job_id in victims.values():
            fuzz.await_state(job_id, lambda state: state.is_terminal)
            fuzz.damage(job_id, 3)
            fuzz.ask_all(job_id)
        fuzz.ask_all(healthy)
        assert fuzz.state(healthy) is JobState.PROCESSING, fuzz.explain()
    fuzz.finish("healthy")
    fuzz.await_state(healthy, lambda state: state is JobState.COMPLETED)
    assert len(fuzz.done) == mutations
    assert "Traceback" not in site.log, fuzz.explain()
    status = Path(f"/proc/{site.processes[0].pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < MOST_RESIDENT_KIB

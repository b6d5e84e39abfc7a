"""A user's place on this machine for benchmarks without a cluster: a world of the crash tests, paced as the product is.

Its scheduler is the fake Slurm's executables, or the local backend.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ffdl_batch.client import Client, ClientError
from ffdl_batch.client.connection.daemon_start import Dialling
from tests.crash.world import World, WorldOptions

PATIENCE_S = 60.0
_CONFIG = """\
check_images = false
idle_exit_s = 3600
[backend]
default = "{backend}"
[backend.slurm]
credential_life_s = {life_s}
python = "{python}"
scratch_base = "{base}/scratch"
[backend.local]
scratch_base = "{base}/scratch"
"""


class Place(World):
    """All lies below `base`. Nothing of the product's pace is changed."""

    def _config(self) -> str:
        values = self.options
        return _CONFIG.format(backend=values.backend, life_s=values.life_s, python=values.python, base=self.base)

    def dialling(self, *, start: bool) -> Dialling:
        """How to reach this place's daemon; `start`: start it where it does not run."""
        return Dialling(environ=self.environment(), start=start, report=lambda _: None)

    def client(self, *, start: bool = False) -> Client:
        """A client of this place's daemon; close it."""
        return Client(dialling=self.dialling(start=start))

    def launch(self, module: str, **more: str) -> subprocess.Popen[bytes]:
        """Start the daemon of a module and wait until it answers."""
        self.state.mkdir(exist_ok=True)
        with (self.state / "daemon.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, "--personal"],
                env=self.environment() | more, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        await_true(lambda: process.poll() is not None or self.is_served(), f"an answer of {module}")
        if process.poll() is not None:
            raise RuntimeError(f"{module} ended with {process.returncode}: {self.words_of_daemon()}")
        return process

    def is_served(self) -> bool:
        """Whether a daemon answers."""
        try:
            with self.client() as client:
                client.health()
        except ClientError:
            return False
        return True

    def daemon_pid(self) -> int | None:
        """The running daemon, by its lock; None where none lives."""
        lock = self.state / "daemon.lock"
        text = lock.read_text(encoding="utf-8") if lock.exists() else ""
        pid = int(json.loads(text)["pid"]) if text.strip() else 0
        return pid if pid and is_alive(pid) else None

    def words_of_daemon(self) -> str:
        """The end of its log."""
        path = self.state / "daemon.log"
        return path.read_text(encoding="utf-8", errors="replace")[-1500:] if path.exists() else "no log"

    def add_model(self) -> Path:
        """A model directory with nothing in it that matters."""
        model = self.base / "model"
        model.mkdir(exist_ok=True)
        (model / "README").write_text("nothing is needed here\n", encoding="utf-8")
        return model

    def add_manifest(self, name: str, command: str, batch: str = "{}") -> Path:
        """A manifest of a small job."""
        path = self.base / f"{name}.yml"
        text = textwrap.dedent(f"""\
            name: {name}
            cpus: 1
            memory: 64MiB
            batch: {batch}
            framework:
              name: custom
              version: /images/any.sif
              command: {json.dumps(command)}
            """)
        path.write_text(text, encoding="utf-8")
        return path


@contextmanager
def open_place(backend: str, *, database_url: str = "", life_s: float = 300.0) -> Iterator[Place]:
    """A new place; every process of it is ended afterwards. TMPDIR says where it lies."""
    with tempfile.TemporaryDirectory(prefix="ffdl-bench-") as directory:
        place = Place(Path(directory), WorldOptions(backend=backend, life_s=life_s, database_url=database_url))
        try:
            yield place
        finally:
            place.close()


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_true(
    condition: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S, pause_s: float = 0.02
) -> None:
    """Until the condition holds. Raises RuntimeError after `patience_s`: then there is no figure."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(pause_s)

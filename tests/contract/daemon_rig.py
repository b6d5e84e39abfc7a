"""Starts real daemons for tests, talks to them over their socket, and ends every one of them by its pid."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.processes import lives_here
from tests import preloaded
from tests.first_start import write_schema

REPOSITORY = Path(__file__).resolve().parents[2]
FAKED = ("-m", "tests.fakes.daemon_with_fake_scheduler")
PLAIN = ("-m", "ffdl_batch.daemon.main")
PATIENT = ("-m", "tests.fakes.patient_daemon")
LIMIT_S = 120.0
"""How long a test waits for what must happen; never how long it takes."""

MANIFEST = """\
name: digits
framework:
  name: custom
  version: python-numpy
  command: python3 train.py
"""


def until(condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
    """Return the condition's first true value; fail with `what` if it does not come.

    A look at a job costs a daemon or an API server some milliseconds, so the pauses between looks grow.
    """
    deadline, pause_s = time.monotonic() + LIMIT_S, 0.02
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {LIMIT_S:g} s for {what if isinstance(what, str) else what()}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.2)
    return found


class UnixHttp(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("ffdl", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(os.fspath(self._path))


@dataclass
class Site:
    """A state directory, a socket, and the daemons that were started on them."""

    directory: Path
    idle_exit_s: float = 60.0
    more_environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "ffdl.sock"

    @property
    def log(self) -> str:
        return "\n".join(
            path.read_text() for path in (self.directory / "err", self.state / "daemon.log") if path.exists()
        )

    def environment(self) -> dict[str, str]:
        """As bare as cron's: no HOME, no XDG_*."""
        return {
            "PATH": os.defpath,
            "PYTHONPATH": str(REPOSITORY),
            "FFDL_STATE_DIR": str(self.state),
            "FFDL_SOCKET": str(self.socket),
            "FFDL_BACKEND": "fake",
            "FFDL_IDLE_EXIT_S": str(self.idle_exit_s),
            "FFDL_WATCH_INTERVAL_S": "0.2",
            "FFDL_DOORBELL_INTERVAL_S": "0.1",
            "FFDL_DATA_MOUNT": "never",  # whatever this machine can
            **self.more_environment,
        }

    def launch(
        self,
        *arguments: str,
        program: tuple[str, ...] = FAKED,
        start: type[subprocess.Popen[bytes]] = preloaded.PopenDaemon,
    ) -> subprocess.Popen[bytes]:
        """Start a daemon and return at once."""
        if not self.state.exists():
            write_schema(self.state / "ffdl.sqlite3")
        with (self.directory / "err").open("ab") as errors:
            process = start(
                [sys.executable, *program, "--personal", *arguments],
                cwd="/",
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start(self, *arguments: str, program: tuple[str, ...] = FAKED) -> subprocess.Popen[bytes]:
        """Start a daemon and wait until it answers."""
        process = self.launch(*arguments, program=program)

        def answers() -> bool:
            assert process.poll() is None, f"the daemon ended with {process.returncode}:\n{self.log}"
            return self.is_served()

        until(answers, f"the daemon to answer; its log:\n{self.log}")
        return process

    def is_served(self) -> bool:
        try:
            return self.ask("GET", "/api/v1/health")[0] == 200
        except OSError:
            return False

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON of one request on a connection of its own."""
        connection = UnixHttp(self.socket)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else {}
        except ConnectionResetError as error:  # the daemon ended before its reply
            time.sleep(2)  # its exit status may take a moment
            statuses = [process.poll() for process in self.processes]
            error.add_note(
                f"exit statuses of the daemons: {statuses}; request: {method} {path}; their log:\n{self.log[-4000:]}"
            )
            raise
        finally:
            connection.close()

    def submit(self, key: str) -> dict[str, Any]:
        """The result of submitting one small job; its archive is sent, too."""
        archive = model_zip()
        digest = hashlib.sha256(archive).hexdigest()
        if self.ask("HEAD", f"/api/v1/archives/{digest}")[0] == 404:
            status, reply = self.ask("PUT", f"/api/v1/archives/{digest}", archive)
            assert status == 200, reply
        status, reply = self.ask("POST", "/api/v1/jobs", {"submissions": [submission(key, digest)]})
        assert status == 200, reply
        result: dict[str, Any] = reply["results"][0]
        assert result["problem"] is None, result
        return result

    def state_of(self, job_id: str) -> str:
        return str(self.ask("GET", f"/api/v1/jobs/{job_id}")[1]["job"]["state"])

    def try_to(self, *words: str, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run an `ffdl` command; `options` as of `subprocess.run`."""
        usual = {"cwd": "/", "env": self.environment(), "capture_output": True, "text": True, "timeout": LIMIT_S}
        return preloaded.run([*preloaded.FFDL, *words], check=False, **{**usual, **options})

    def run(self, *words: str, code: int = 0, **options: Any) -> str:
        """Return the standard output of an `ffdl` command that ends with that code; `options` are those of run()."""
        done = self.try_to(*words, **options)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.log}"
        return str(done.stdout)

    def close(self) -> None:
        """End what was started, by pid, and wait for each."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
        signal_daemon(self.state, signal.SIGKILL)  # one that `dial` started


def signal_daemon(state: Path, number: signal.Signals) -> bool:
    """Send a signal to the daemon that the lock of a state directory names, and return True.

    Return False if that daemon has ended; another process may have its process id.
    """
    try:
        holder = json.loads((state / "daemon.lock").read_text() or "{}")
        if lives_here(holder):
            os.kill(holder["pid"], number)
            return True
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        pass
    return False


def model_zip() -> bytes:
    """A model archive, always the same."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("train.py"), "print('x')\n")
    return buffer.getvalue()


def submission(key: str, digest: str) -> dict[str, Any]:
    """The JSON of one submission."""
    return {
        "manifest": MANIFEST,
        "manifest_name": "manifest.yml",
        "base_dir": "/",
        "archive": digest,
        "key": key,
        "backend": "fake",
    }


@contextlib.contextmanager
def site_in(directory: Path, **values: Any) -> Iterator[Site]:
    """A site whose daemons are gone afterwards."""
    site = Site(directory, **values)
    try:
        yield site
    finally:
        site.close()

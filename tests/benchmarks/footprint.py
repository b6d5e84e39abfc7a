"""What each user's daemon costs a site that runs one for each user: its private memory at rest, and its start.

The daemon is started as the spawner starts it, but with a socket of its own, for a user without jobs. The first start
creates the database; later ones find it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.benchmarks.place import Place, await_true, open_place
from tests.benchmarks.usage import cpu_seconds, private_mib

REST_S = 10.0
"""How long the daemon is left alone before its memory is read; by then each loop that starts early has had a turn."""
_REQUEST = b"GET /api/v1/health HTTP/1.1\r\nHost: ffdl\r\nConnection: close\r\n\r\n"


@dataclass(slots=True)
class Samples:
    """Figures of one kind of start, a number for each run."""

    answer_s: list[float] = field(default_factory=list)
    """Seconds from the start of the process to its first answer."""
    cpu_s: list[float] = field(default_factory=list)
    """Processor time until then, of its children too."""
    private_mib: list[float] = field(default_factory=list)


def measure_footprint(knobs: Knobs) -> list[Figure]:
    """Start a daemon in a new state directory, and again in the same one, `rounds` times."""
    kinds = {"first start": Samples(), "later start": Samples()}
    for _ in range(knobs.rounds):
        with open_place("slurm") as place:
            for samples in kinds.values():
                _measure_start(place, samples)
    return [figure for what, samples in kinds.items() for figure in _figures(what, samples)]


def _figures(what: str, samples: Samples) -> list[Figure]:
    return [
        Figure(what, "first answer", "ffdl", "s", samples.answer_s, "<= 1"),
        Figure(what, "processor time until then", "ffdl", "s", samples.cpu_s),
        Figure(what, f"private memory after {REST_S:g} s", "ffdl", "MiB", samples.private_mib, "<= 50"),
    ]


def _measure_start(place: Place, samples: Samples) -> None:
    began = time.monotonic()
    with _running(place) as daemon:
        await_true(lambda: daemon.poll() is not None or _answers(place), "the first answer", pause_s=0.002)
        samples.answer_s.append(time.monotonic() - began)
        if daemon.poll() is not None:
            raise RuntimeError(f"the daemon exited with status {daemon.returncode}: {place.words_of_daemon()}")
        samples.cpu_s.append(sum(cpu_seconds(daemon.pid)))
        time.sleep(REST_S)
        samples.private_mib.append(private_mib(daemon.pid))


@contextlib.contextmanager
def _running(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-I", "-m", "ffdl_batch.daemon.main", "--personal"]
    with subprocess.Popen(argv, env=place.environment(), cwd="/", stdin=subprocess.DEVNULL) as daemon:
        try:
            yield daemon
        finally:
            daemon.terminate()


def _answers(place: Place) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(place.environment()["FFDL_SOCKET"])
        except OSError:
            return False
        asking.sendall(_REQUEST)
        if not asking.recv(64).startswith(b"HTTP/1.1 200 "):
            raise RuntimeError("the daemon did not answer a request with status 200")
        return True

"""Tests keys, ports and the fingerprint that are derived from a site's secret and a job's number, and the end of the
program."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rig.test_slurm_configs import CONFIGS, render, site_values

PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ffdl_network import layout, settings, wireguard
site, secrets = settings.load(), (bytes(32), b"1" * 32, b"1" * 33)
def key(secret, job_id, nodes, rank):
    return wireguard.private_key(secret, layout.Job(job_id, 1000, nodes, 0, 2), rank)
two = ("n1", "n2")
print(json.dumps({
    "keys": {
        "plain": key(secrets[0], 7, two, 0),
        "again": key(secrets[0], 7, two, 0),
        "of another secret": key(secrets[1], 7, two, 0),
        "of another node": key(secrets[0], 7, two, 1),
        "of another job": key(secrets[0], 8, two, 0),
        "of other nodes": key(secrets[0], 7, ("n1", "n3"), 0),
        "of nodes whose names run together": key(secrets[0], 7, ("n1n", "2"), 0),
        "of a number that runs into the rank": key(secrets[0], 71, two, 0),
    },
    "prints": [wireguard.fingerprint(secret) for secret in secrets],
    "ports": [
        wireguard.port(layout.Job(number, 1000, two, 0, 2), site) for number in (1, 31, 32, 33, 67108863)
    ],
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program printed for a site with 32 ports."""
    place = tmp_path_factory.mktemp("site")
    site = site_values(place / "v", ACCOUNTING_STORAGE_HOST="db", NETWORK_WIREGUARD_PORTS="300-331")
    assert render(place / "out", *site).returncode == 0
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, str(place / "out/libexec")]
    found: dict[str, Any] = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return found


def test_wireguard_private_keys_are_reproducible_and_distinct(told: dict[str, Any]) -> None:
    keys = told["keys"]
    assert keys["plain"] == keys.pop("again")
    assert len(set(keys.values())) == len(keys) == 7
    for key in keys.values():
        raw = base64.b64decode(key, validate=True)
        assert (len(raw), raw[0] & 7, raw[31] & 0xC0) == (32, 0, 0x40)


def test_wireguard_fingerprint_distinguishes_secrets(told: dict[str, Any]) -> None:
    assert len(set(told["prints"])) == 3
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in told["prints"])


def test_wireguard_port_wraps_around_at_end_of_range(told: dict[str, Any]) -> None:
    assert told["ports"] == [301, 331, 300, 301, 331]


REMOVE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ffdl_network import background
background.remove_socket(Path(sys.argv[2]), 60)
"""


LISTEN = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print("listens", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path() -> Iterator[Path]:
    """Yield a path for a socket. The path must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        yield Path(place, "s")


def remove_socket(path: Path) -> None:
    argv = [sys.executable, "-I", "-S", "-B", "-c", REMOVE, str(CONFIGS / "libexec"), str(path)]
    subprocess.run(argv, check=True)
    assert not path.exists()


def test_remove_socket_kills_program_that_listens(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LISTEN, str(path)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"listens\n"
        remove_socket(path)
        assert program.wait() == -signal.SIGKILL


def test_remove_socket_does_not_kill_process_forged_in_table_of_sockets(path: Path) -> None:
    with (
        socket.socket() as connection,
        socket.socket(socket.AF_UNIX) as forged,
        subprocess.Popen(["sleep", "60"], pass_fds=[connection.fileno()]) as victim,
    ):
        inode = os.fstat(connection.fileno()).st_ino
        connection.close()
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(path))
        forged.bind(f"\0\n0 0 0 0 0 0 {inode} {path}")
        remove_socket(path)
        assert victim.poll() is None
        victim.kill()

"""``ffdl-submitd dial``: copies standard input and output to the daemon's socket on this host.

Another login node calls it through ssh, so it starts fast: standard library and the discovery rules only. It starts
the daemon when none runs. It knows nothing of what passes through it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ffdl_batch.config.daemon_location import (
    LOG_NAME,
    Holder,
    PlaceRefused,
    SocketPlace,
    judge_holder,
    make_own_directory,
    read_lock,
    socket_place,
    this_machine,
)
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.peer_credentials import read_credentials

START_S = 60.0
_CHUNK = 65536
_STDIN, _STDOUT = 0, 1


def dial(environ: Mapping[str, str]) -> int:
    """Connect, starting the daemon if need be, and relay until the daemon closes; returns the exit code."""
    state_dir = _state_dir(environ)
    connection = _connect_any(environ, state_dir)
    if connection is None:
        connection = _start_and_connect(environ, state_dir)
    with connection:
        relay(connection, _STDIN, _STDOUT)
    return ExitCode.OK


def relay(connection: socket.socket, source: int, target: int) -> None:
    """Copy `source` to the connection and the connection to `target` until the latter's end.

    The end of `source` is passed on as a half-close: what the daemon still has to say arrives. Two threads, because
    one that waits for its writer to drain must not stop the other direction.
    """
    threading.Thread(target=_copy_up, args=(connection, source), daemon=True).start()
    try:
        while chunk := connection.recv(_CHUNK):
            _write_all(target, chunk)
    except OSError as error:  # the daemon was killed, or the reader of our output is gone: either way it is over
        if not isinstance(error, BrokenPipeError | ConnectionResetError):
            raise


def _copy_up(connection: socket.socket, source: int) -> None:
    try:
        while chunk := os.read(source, _CHUNK):
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the daemon has closed; the other direction ends by that


def _write_all(target: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(target, view) :]


def _state_dir(environ: Mapping[str, str]) -> Path:
    if environ.get("FFDL_STATE_DIR", "").startswith("/"):
        return Path(environ["FFDL_STATE_DIR"])
    from ffdl_batch.config import ConfigError, load_settings

    try:
        return Path(load_settings(environ=environ).state_dir)
    except (ConfigError, OSError) as error:
        raise PlaceRefused(f"the configuration cannot be used: {error}", exit_code=ExitCode.BAD_MANIFEST) from error


def _connect_any(environ: Mapping[str, str], state_dir: Path) -> socket.socket | None:
    """The daemon that the lock names, else the one at the usual place. Raises PlaceRefused for one elsewhere."""
    lock = read_lock(state_dir)
    holder = judge_holder(lock, this_machine()) if lock else Holder.DEAD
    if lock and holder is Holder.ELSEWHERE:
        raise PlaceRefused(f"the daemon runs on {lock.host}, not here", f"ssh {lock.host} ffdl-submitd dial")
    if lock and holder is Holder.ALIVE_HERE and lock.socket:
        connection = _connect(SocketPlace(Path(lock.socket), named=False))
        if connection is not None:
            return connection
    return _connect(socket_place({**environ, "FFDL_STATE_DIR": str(state_dir)}))


def _connect(place: SocketPlace) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.fspath(place.path))
    except OSError:
        connection.close()
        return None
    uid = read_credentials(connection).uid
    if uid != os.getuid() and not place.named:
        connection.close()
        raise PlaceRefused(
            f"the process behind {place.path} is of user {uid}, not yours",
            "remove the socket, or name the right one with FFDL_SOCKET",
            ExitCode.NOT_ALLOWED,
        )
    return connection


def _start_and_connect(environ: Mapping[str, str], state_dir: Path) -> socket.socket:
    process = _spawn(environ, state_dir)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        time.sleep(0.05)
        connection = _connect_any(environ, state_dir)
        if connection is not None:
            return connection
        if process.poll():
            raise PlaceRefused(
                f"the daemon did not start (exit code {process.returncode})", f"read {state_dir / LOG_NAME}"
            )
    raise PlaceRefused(f"the daemon did not answer within {START_S:g} s", f"read {state_dir / LOG_NAME}")


def _spawn(environ: Mapping[str, str], state_dir: Path) -> subprocess.Popen[bytes]:
    """A daemon in a session of its own, which stays when this login ends."""
    from ffdl_batch.config.fingerprint import for_daemon

    try:
        make_own_directory(state_dir)
        with (state_dir / LOG_NAME).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-E", "-P", "-m", "ffdl_batch.daemon.main", "--personal"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**for_daemon(environ), "FFDL_STATE_DIR": str(state_dir)},
                start_new_session=True,
            )
    except OSError as error:
        raise PlaceRefused(f"the daemon cannot be started: {error}") from error

"""Starts and stops the WireGuard program of a job's network, on kernels without WireGuard. It outlives the prolog.

The record of the program is the line of /proc/<pid>/stat, with the process id and the start time. The process writes it
before it executes the program, while it still holds the job's lock. So if a process gets the lock of a killed prolog
and finds no record, the program is not running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Callable, Sequence

from .commands import ENVIRONMENT, Trouble

_SOCKETS = Path("/var/run/wireguard")
"""The sockets on which such programs listen for wg. The name of the file is that of the device."""
_START, _STATE = 19, 0
"""Fields of /proc/<pid>/stat after the name (proc(5): 22 and 3)."""
_REST_S = 0.02
_CONNECT_S = 1.0


def start(program: str, name: str, record: Path, limit_s: float) -> int:
    """Start a program that makes the device `name`, in its own session, and return its process id when wg can use it.

    Only `stop` ends it.
    """

    def write_record() -> None:
        descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(descriptor, Path("/proc/self/stat").read_bytes())
        os.close(descriptor)

    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            [program, "-f", name],
            env=ENVIRONMENT,
            cwd="/",
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
            # This runs before close_fds releases the job's lock. This process has no other thread.
            preexec_fn=write_record,  # noqa: PLW1509
            close_fds=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Trouble(f"{program} (NETWORK_WIREGUARD_PROGRAM of values.env) cannot be started: {error}") from error

    def listens() -> bool:
        if process.poll() is not None:
            raise Trouble(f"`{program} -f {name}` ended with {process.returncode}; start it by hand, and it says why")
        return _listener(socket_of(name)) != 0

    _await(listens, limit_s, f"{program} made no device {name}")
    return process.pid


def stop(record: Path, patience_s: float) -> None:
    """Kill the program of a record. Raises Trouble if it does not end."""
    try:
        line = record.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    number, _, rest = line.partition(" ")
    if number.isdigit():  # else the process was killed before it wrote the record
        _kill(int(number), _fields(rest)[_START], patience_s)
    record.unlink()


def socket_of(name: str) -> Path:
    """Return the socket on which the program of a device listens for wg."""
    return _SOCKETS / f"{name}.sock"


def sockets(prefix: str) -> list[Path]:
    """Return the sockets of devices whose names begin with `prefix`."""
    return sorted(_SOCKETS.glob(f"{prefix}*.sock"))


def remove_socket(path: Path, patience_s: float) -> None:
    """Remove the socket of a program, and kill the program if it still listens."""
    if not path.is_socket():
        return
    pid = _listener(path)
    if pid:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _kill(
                pid,
                _fields(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))[_START],
                patience_s,
            )
    path.unlink(missing_ok=True)


def await_port(pid: int, port: int, limit_s: float) -> None:
    """Wait until the program has opened its UDP port on this node. Raises Trouble after `limit_s`."""

    def has_opened() -> bool:
        return _has_one(Path(f"/proc/{pid}"), _names(_bound_to(port)))

    _await(has_opened, limit_s, f"UDP port {port} could not be opened on this node: who has it? (ss -lunp)")


def bound(port: int) -> bool:
    """Return whether a process on this node has opened the UDP port."""
    return bool(_bound_to(port))


def _await(done: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise Trouble(f"{otherwise} within {limit_s:g} s")
        time.sleep(_REST_S)


def _listener(path: Path) -> int:
    """Return the pid of the process that listens at root's socket; 0 if no process listens.

    The pid comes from the kernel (unix(7), SO_PEERCRED). /proc/net/unix cannot be trusted: any user can forge its lines
    with a newline in the name of a socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_CONNECT_S)
        try:
            asked.connect(str(path))
        except OSError:
            return 0
        return int(struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def _kill(pid: int, started: str, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while _is_alive(pid, started):
        if time.monotonic() > deadline:
            raise Trouble(f"process {pid}, the WireGuard program of a job that has ended, does not die")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(_REST_S)


def _is_alive(pid: int, started: str) -> bool:
    """Return whether this process is alive, and not another one with the same id.

    If its first thread has ended, the other threads still keep its files open, and so its device.
    """
    process = Path(f"/proc/{pid}")
    try:
        fields = _fields((process / "stat").read_text(encoding="utf-8", errors="replace"))
        threads = len(list((process / "task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[_START] == started and (fields[_STATE] not in ("Z", "X") or threads > 1)


def _fields(stat: str) -> Sequence[str]:
    """Return the fields after the name, which may contain blanks and brackets."""
    return stat.rpartition(")")[2].split()


def _bound_to(port: int) -> set[str]:
    """Return the inodes of this node's UDP sockets with this port."""
    rows = (line.split() for file in ("udp", "udp6") for line in _lines(Path("/proc/net", file)))
    return {row[9] for row in rows if row[1].endswith(f":{port:04X}")}


def _lines(file: Path) -> Sequence[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if file.exists() else ()


def _names(inodes: set[str]) -> set[str]:
    return {f"socket:[{inode}]" for inode in inodes}


def _has_one(process: Path, wanted: set[str]) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        for file in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # it has closed this one
                if str(file.readlink()) in wanted:
                    return True
    return False

"""Connects to the user's daemon on a host with a spawner, which starts it; see docs/security/spawner.md.

Nothing is sent to a process of another user: the peer of each connection is compared with the caller.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ffdl_batch.client.connection.http_client import DirectChannel
from ffdl_batch.client.connection.own_socket import connect
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import SocketPlace
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import read_credentials

RUN_VARIABLE = "FFDL_SITE_RUN"
"""Names the spawner's `run_dir`, for sites that changed it."""
_RUN = "/run/ffdl"
ANSWER_S = 25.0
"""Longer than the spawner's limit for the check of one request."""
_ANSWER_BYTES = 1024
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_STOP_S = 30.0
"""As for a personal daemon, which finishes its requests and the current step of its loops."""


@dataclass(frozen=True, slots=True)
class SitePlace:
    """The directory of a spawner of this host."""

    run_dir: Path

    @property
    def spawner(self) -> Path:
        """The spawner's socket."""
        return self.run_dir / "spawner.sock"

    @property
    def socket(self) -> Path:
        """The socket of the caller's daemon."""
        return self.run_dir / "users" / str(os.getuid()) / "daemon.sock"

    @property
    def state_dir(self) -> Path:
        """The state directory of the caller's daemon. Raises DaemonUnreachable if the site file cannot be used."""
        from ffdl_batch.config.load import ConfigError, site_state_dir

        try:
            return site_state_dir(os.getuid())
        except ConfigError as error:
            raise DaemonUnreachable(str(error), "", ExitCode.BAD_MANIFEST) from error


def find_site(environ: Mapping[str, str], report: Callable[[str], None]) -> SitePlace | None:
    """Return the place of this host's spawner; None if the host has none. Call `report` and return None if users other
    than root could replace it."""
    place = SitePlace(Path(environ.get(RUN_VARIABLE) or _RUN))
    try:
        found, directory = place.spawner.lstat(), place.run_dir.stat()
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        why = "it is not a socket"
    elif found.st_uid != 0 or directory.st_uid != 0:
        why = "it or its directory does not belong to root"
    elif directory.st_mode & 0o022:
        why = "users other than root can write to its directory"
    else:
        return place
    report(f"ignored {place.spawner}: {why}")
    return None


def dial_site(place: SitePlace, *, start: bool, patience_s: float) -> DirectChannel:
    """Connect to the caller's daemon. If it does not listen and `start` is set, ask the spawner to start it.

    Raises DaemonUnreachable: exit code 77 if the spawner refuses, 75 if it is busy for longer than `patience_s`.
    """
    connected = connect(SocketPlace(place.socket, named=False))
    if connected is not None:
        return connected
    if not start:
        raise DaemonUnreachable(f"no daemon answers at {place.socket}", "start it with: ffdl daemon restart")
    deadline, failures = time.monotonic() + patience_s, 0
    while True:
        failures += 1
        word, rest = ask_spawner(place.spawner, os.getuid(), min(ANSWER_S, max(1.0, deadline - time.monotonic())))
        if word == "refused":
            raise DaemonUnreachable(
                f"the spawner of this host starts no daemon for you: {rest}",
                "ask your administrators; to use a personal daemon instead, set FFDL_STATE_DIR to its directory",
                ExitCode.NOT_ALLOWED,
            )
        if word == "ok" and (connected := connect(SocketPlace(Path(rest), named=False))) is not None:
            return connected
        if time.monotonic() > deadline:
            why = rest if word == "later" else f"no process listens at {rest}"
            message = f"the spawner of this host did not start a daemon for you within {patience_s:g} s: {why}"
            raise DaemonUnreachable(message, "try again later")
        import random

        time.sleep(growing_pause(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, random.random()))  # noqa: S311


def ask_spawner(spawner: Path, uid: int, longest_s: float = ANSWER_S) -> tuple[str, str]:
    """Ask for the daemon of a user. Return the first word of the spawner's answer (`ok`, `refused` or `later`) and the
    rest. Without an answer, the word is `later`."""
    limit = struct.pack("ll", int(longest_s), 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        # Not a non-blocking socket, which would get EAGAIN as soon as the backlog is full.
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        try:
            asked.connect(os.fspath(spawner))
            if read_credentials(asked).uid != 0:
                return "refused", f"the process at {spawner} does not belong to root"
            asked.send(f"ensure {uid}\n".encode())
            line = asked.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return "later", f"it has not answered for {longest_s:g} s"
        except OSError as error:
            return "later", f"{spawner}: {error.strerror or error}"
    word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
    return (word, rest) if word in ("ok", "refused", "later") else ("later", "it closed the connection")


def stop_site_daemon(place: SitePlace, patience_s: float = _STOP_S) -> int | None:
    """End the caller's daemon, wait until it has ended, and return its process id; None if none runs.

    The kernel names the process that listens. Raises DaemonUnreachable if it does not end.
    """
    connected = connect(SocketPlace(place.socket, named=False))
    if connected is None:
        return None
    try:
        pid = read_credentials(connected.connection).pid
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    finally:
        connected.close()
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not _has_ended(process, patience_s):
            message = f"the daemon (process {pid}) has not ended {patience_s:g} s after SIGTERM"
            raise DaemonUnreachable(message, f"if it hangs: kill -KILL {pid} (running jobs continue)")
    except ProcessLookupError:
        return pid  # it has just ended by itself
    finally:
        os.close(process)
    return pid


def _has_ended(process: int, patience_s: float) -> bool:
    """Return whether the process of a pidfd ends within that time."""
    import select

    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(patience_s * 1000))

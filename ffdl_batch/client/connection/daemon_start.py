"""Finds this user's daemon, or starts it.

Any number of clients may do this concurrently, on several login nodes. Each may start a daemon; the daemon's lock
decides which one remains. An unneeded start is therefore harmless, and this module takes no lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.client.connection.daemon_location import locate_socket
from ffdl_batch.client.connection.daemon_settings import own_settings
from ffdl_batch.client.connection.http_client import Channel
from ffdl_batch.client.connection.own_socket import connect, is_ready
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import (
    LOCK_NAME,
    LOG_NAME,
    DaemonLock,
    Holder,
    LockUnreadable,
    Machine,
    SocketPlace,
    judge_holder,
    make_own_directory,
    read_lock,
    this_machine,
)
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.host.core_dumps import core_limits, restore_core_limits
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.resource_exhaustion import find_lack

if TYPE_CHECKING:
    import subprocess

    from ffdl_batch.client.connection.daemon_location import HostPlace
    from ffdl_batch.client.connection.daemon_settings import OwnSettings
    from ffdl_batch.client.connection.hub import HubPlace
    from ffdl_batch.client.connection.site_daemon import SitePlace
    from ffdl_batch.client.connection.ways import HubSocket, Way

DAEMON_ARGV = (sys.executable, "-E", "-P", "-m", "ffdl_batch.daemon.main", "--personal")
START_S = 60.0
"""Maximum time until a daemon answers, on a busy machine. The wait ends earlier if the daemon exits."""
_GRACE_S = 2.0
_OWN_PREFIX = "ffdl-submitd: "
"""The beginning of the message with which a daemon exits. The interpreter may print more after it."""
_FIRST_SLEEP_S, _LONGEST_SLEEP_S = 0.02, 0.25
_KEPT = (
    "PATH", "LD_LIBRARY_PATH", "PGPASSFILE", "PGSERVICEFILE",
    "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Started:
    """A daemon that this process started."""

    process: subprocess.Popen[bytes]
    log_from: int
    """The offset in the log, in bytes, where its output begins."""


def _warn_program(text: str) -> None:
    """Warn a program that uses the client. Commands use another function."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


@dataclass(frozen=True, slots=True)
class Dialling:
    """How to connect to the daemon."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    socket_path: Path | None = None
    """Overrides the socket of the environment."""
    state_dir: Path | None = None
    """Overrides the state directory of the environment."""
    start: bool = True
    daemon_argv: tuple[str, ...] = DAEMON_ARGV
    patience_s: float = START_S
    machine: Callable[[], Machine] = this_machine
    report: Callable[[str], None] = _warn_program
    """Gets a line if the daemon has other settings than the caller."""
    dumps: tuple[int, int] = field(default_factory=core_limits)
    """The shell's core dump limits. They apply to the daemon and its jobs even if this process changes its own."""
    host: str | None = None
    """The login node whose daemon is used, over SSH; None: as environment and configuration say; "": none."""
    forwards: bool = True
    """Whether a daemon on another login node is reached over SSH."""
    user: int | None = None
    """The user whose daemon is asked, through a hub, by an operator or auditor; None: the caller's own."""
    is_site: bool = False
    """Whether the hub itself is asked, by an operator or auditor, about all users."""

    @property
    def is_on_host(self) -> bool:
        """Whether the daemon of a login node is reached over SSH. Raises as :meth:`way`."""
        from ffdl_batch.client.connection.daemon_location import HostPlace

        return isinstance(self.way(), HostPlace)

    def dial(self) -> Channel:
        """Connect to the daemon. Raises :class:`DaemonUnreachable`, also for an invalid configuration."""
        own = own_settings(self.environ, self.state_dir)
        way = self._choose(own, self.report)
        if way is not None:
            return self._reach(way)
        place = SocketPlace(self.socket_path, named=True) if self.socket_path else locate_socket(own.environ)
        connected: Channel | None = connect(place)
        if connected is None:
            if not self.start:
                raise DaemonUnreachable(f"no daemon answers at {place.path}", "start it with: ffdl-submitd --personal")
            _refuse_foreign(place)
            connected = self._find_or_start(place, own.state_dir)
        if (warning := own.differ_from_daemon(place)) is not None:
            self.report(warning)
        return connected

    def cluster(self) -> Mapping[str, str] | None:
        """Return the cluster for a :class:`~ffdl_batch.domain.job.submission.Submission`; None for a daemon with its
        own environment: on another host, or started by a site if the shell names no cluster. Raises as :meth:`way`."""
        from ffdl_batch.client.connection.site_daemon import SitePlace
        from ffdl_batch.config.fingerprint import named_slurm

        way, named = self.way(), named_slurm(self.environ)
        return named if way is None or (isinstance(way, SitePlace) and any(named.values())) else None

    def way(self) -> Way:
        """Return how the daemon is reached; None for a personal daemon of this machine. Raises DaemonUnreachable."""
        return self._choose(own_settings(self.environ, self.state_dir), lambda _: None)

    def _choose(self, own: OwnSettings, report: Callable[[str], None]) -> Way:
        from ffdl_batch.client.connection.ways import Given, choose_way

        is_personal = self.socket_path is not None or self.state_dir is not None
        given = Given(self.host, is_personal, self.user is not None or self.is_site)
        return choose_way(given, self.environ, own.settings, self.machine, report)

    def _reach(self, way: HostPlace | HubPlace | HubSocket | SitePlace) -> Channel:
        from ffdl_batch.client.connection.daemon_location import HostPlace
        from ffdl_batch.client.connection.site_daemon import SitePlace, dial_site

        if isinstance(way, SitePlace):
            return dial_site(way, start=self.start, patience_s=self.patience_s)
        if isinstance(way, HostPlace):
            from ffdl_batch.client.connection.host_relay import connector_of, dial_relay

            return dial_relay(way, connector_of(way.host, self.environ), self.report)
        from ffdl_batch.client.connection.ways import HubSocket

        if isinstance(way, HubSocket):
            return way.dial()
        from ffdl_batch.client.connection.hub import dial_hub

        return dial_hub(way)

    def _find_or_start(self, place: SocketPlace, state_dir: Path) -> Channel:
        lock = _read_or_refuse(state_dir)
        holder = judge_holder(lock, self.machine()) if lock else Holder.DEAD
        if lock and holder is Holder.ELSEWHERE:
            return self._reach_login_node(lock, state_dir)
        return self._await_socket(place, state_dir, None if holder is Holder.ALIVE_HERE else self._spawn(state_dir))

    def _reach_login_node(self, lock: DaemonLock, state_dir: Path) -> Channel:
        from ffdl_batch.client.connection.host_relay import dial_login_node

        if not self.forwards:
            raise DaemonUnreachable(f"the daemon runs on {lock.host}, not here", f"ssh {lock.host} ffdl daemon status")
        return dial_login_node(lock, self.environ, state_dir)

    def _spawn(self, state_dir: Path) -> _Started:
        try:
            make_own_directory(state_dir)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            log = os.open(state_dir / LOG_NAME, flags, 0o600)
            log_from = os.fstat(log).st_size
        except OSError as error:
            raise DaemonUnreachable(f"the state directory {state_dir} cannot be used: {error.strerror}") from error
        except LockUnreadable as error:
            raise DaemonUnreachable.because(error) from error
        import subprocess

        try:
            process = subprocess.Popen(
                (*self.daemon_argv, *_directory_option()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._daemon_environment(state_dir),
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonUnreachable(f"{self.daemon_argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(log)
        restore_core_limits(process.pid, self.dumps)
        # Reap the daemon if this process lives longer (a notebook does). Without a thread, a zombie process remains,
        # which does no harm.
        with contextlib.suppress(RuntimeError, MemoryError):
            threading.Thread(target=process.wait, daemon=True).start()
        return _Started(process, log_from)

    def _daemon_environment(self, state_dir: Path) -> dict[str, str]:
        kept = daemon_environment(self.environ, state_dir)
        return kept | {"FFDL_SOCKET": str(self.socket_path)} if self.socket_path else kept

    def _live_holder(self, state_dir: Path) -> DaemonLock | None:
        lock = _read_or_refuse(state_dir)
        return lock if lock and judge_holder(lock, self.machine()) is Holder.ALIVE_HERE else None

    def _await_socket(self, place: SocketPlace, state_dir: Path, started: _Started | None) -> Channel:
        """Poll our socket, and the socket that the lock names (of another login session)."""
        deadline = time.monotonic() + self.patience_s
        pause = _FIRST_SLEEP_S
        hopeless: float | None = None
        while True:
            alive = self._live_holder(state_dir)
            for candidate in _candidates(place, alive):
                connected = connect(candidate)
                if connected is not None and (started is None or is_ready(connected, deadline - time.monotonic())):
                    return connected
            if started is None and alive is None:  # the holder has stopped meanwhile
                started = self._spawn(state_dir)
            if started is not None and started.process.poll() is not None and alive is None and hopeless is None:
                hopeless = time.monotonic() + _GRACE_S  # another daemon may not have written its lock yet
            if time.monotonic() > min(deadline, hopeless or deadline):
                raise _why_silent(place, state_dir, started, self.patience_s)
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_SLEEP_S)


def daemon_environment(environ: Mapping[str, str], state_dir: Path) -> dict[str, str]:
    """Return the environment of a daemon: variables to find the user's files, Slurm and the cluster of Kubernetes, and
    no others of this shell.

    An interpreter from an environment module may need LD_LIBRARY_PATH to start. PGPASSFILE and PGSERVICEFILE name files
    for PostgreSQL's library. KUBECONFIG names the cluster, as for kubectl; in a pod, two other variables do. Defaults
    of this one command are left out, because they would apply to all commands.
    """
    from ffdl_batch.config.fingerprint import KUBECONFIG, for_daemon, named_clusters, named_slurm
    from ffdl_batch.config.load import home_directory

    kept = {k: v for k, v in for_daemon(environ).items() if k in _KEPT or k.startswith(("FFDL_", "XDG_"))}
    kept.setdefault("PATH", os.defpath)
    if clusters := named_clusters(environ):
        kept[KUBECONFIG] = clusters
    kept |= {name: value for name, value in named_slurm(environ).items() if value}
    return kept | {"HOME": str(home_directory(environ)), "FFDL_STATE_DIR": str(state_dir)}


def _directory_option() -> tuple[str, ...]:
    """Return the option for our ffdl.toml. The daemon's own directory is /, so that no file system is kept busy."""
    from ffdl_batch.config.load import directory_file

    found = directory_file()
    return ("--directory", str(found.parent)) if found else ()


def _refuse_foreign(place: SocketPlace) -> None:
    """Raise DaemonUnreachable for a named socket in another user's directory: it belongs to the site."""
    directory = place.path.parent
    if place.named and directory.exists() and directory.stat().st_uid != os.getuid():
        raise DaemonUnreachable(
            f"no daemon answers at {place.path}, and you may not start it", "contact your administrators"
        )


def _read_or_refuse(state_dir: Path) -> DaemonLock | None:
    try:
        return read_lock(state_dir)
    except LockUnreadable as error:
        raise DaemonUnreachable.because(error) from error


def _candidates(place: SocketPlace, alive: DaemonLock | None) -> list[SocketPlace]:
    """Return the sockets to try: that of a live holder of the lock, then our own."""
    return [SocketPlace(Path(alive.socket), named=False), place] if alive and alive.socket else [place]


def _why_silent(place: SocketPlace, state_dir: Path, started: _Started | None, patience_s: float) -> DaemonUnreachable:
    log = state_dir / LOG_NAME
    if started is None:
        return DaemonUnreachable(
            f"your daemon holds {state_dir / LOCK_NAME} but does not answer at {place.path} after {patience_s:g} s",
            f"try again, or end it with: ffdl daemon stop (running jobs continue); its log is {log}",
        )
    ended = started.process.poll()
    what = (
        f"exited with status {ended}"
        if ended is not None
        else f"does not answer at {place.path} after {patience_s:g} s"
    )
    last = _last_output(log, started.log_from) or _no_space(state_dir)
    output = f"; its last message: {last}" if last else "; it printed nothing"
    now = "" if ended is None else "no daemon runs now; the next command starts one, as does ffdl-submitd; "
    return DaemonUnreachable(f"a daemon was started and {what}{output}", f"{now}read {log}", _code_of(ended))


def _code_of(ended: int | None) -> ExitCode:
    """Return the exit code of a command whose daemon did not start: the daemon's, if another try cannot help."""
    lasting = (ExitCode.UNAVAILABLE, ExitCode.NOT_ALLOWED, ExitCode.BAD_MANIFEST)
    return next((code for code in lasting if code == ended), ExitCode.TRY_AGAIN)


def _no_space(state_dir: Path) -> str:
    """Return a message if the disk is full, so that the daemon could not write one."""
    try:
        free = os.statvfs(state_dir).f_bavail
    except OSError:
        return ""
    return "" if free else f"no space is left in {state_dir}: free some, or raise the quota"


def _last_output(path: Path, start: int) -> str:
    """Return the daemon's message in the file from byte `start` on, else the resource that it lacked, else the last
    line."""
    try:
        text = path.read_bytes()[start:][-4096:].decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in reversed(text.split("\n")) if line.strip()]
    own = next((line for line in lines if line.startswith(_OWN_PREFIX)), "")
    return own or find_lack(text) or (lines[0] if lines else "")

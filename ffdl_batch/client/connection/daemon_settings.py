"""Compare the settings and the release of the caller with those of the running daemon.

A daemon restarts by itself if a configuration file has changed and no command is connected. Commands read the files
too, so that a wrong file is an error immediately and a change that the daemon does not use is reported. The daemon's
lock file has digests of its settings, so no request is needed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch import __version__
from ffdl_batch.client.connection.daemon_location import read_settings
from ffdl_batch.config.daemon_location import DaemonLock, LockUnreadable, SocketPlace, read_lock
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.config import Settings

_NAMED = 3


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """The settings of a daemon that the caller would start now."""

    settings: Settings
    environ: Mapping[str, str]
    """The environment, with the state directory."""

    @property
    def state_dir(self) -> Path:
        """The state directory."""
        return Path(self.settings.state_dir)

    @property
    def written_at_start(self) -> tuple[Path, ...]:
        """The directories that a daemon writes to when it starts: its own, and that of a SQLite database."""
        scheme, _, path = self.settings.database.partition("?")[0].partition(":///")
        return (self.state_dir, Path(path).parent) if scheme.startswith("sqlite") and path else (self.state_dir,)

    def differ_from_daemon(self, place: SocketPlace) -> str | None:
        """Return a sentence if the daemon at `place` has another release or other settings; else None.

        A daemon that does not belong to the state directory (FFDL_SOCKET names a site's) is not compared.
        """
        with contextlib.suppress(LockUnreadable):  # a connected client needs no lock file
            lock = read_lock(self.state_dir)
            if lock is not None and (not place.named or lock.socket == str(place.path)):
                return self.differ_from(lock)
        return None

    def differ_from(self, lock: DaemonLock) -> str | None:
        """Compare with the daemon that wrote `lock`, as :meth:`differ_from_daemon`."""
        from ffdl_batch.config.fingerprint import find_differences

        if lock.version and lock.version != __version__:
            return (
                f"the running daemon has release {lock.version}, but this program has {__version__} "
                f"({describe_daemon(lock)}); to replace it: ffdl daemon restart (jobs continue)"
            )
        found = find_differences(self.settings, self.environ, lock.settings)
        if not found:
            return None
        named = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
        if len(found) == 1:
            what, new = f"the setting {named} differs from that", "the new one"
        else:
            what, new = f"the settings {named} differ from those", "the new ones"
        return f"{what} of the running daemon ({describe_daemon(lock)}); to apply {new}: ffdl daemon restart"


def own_settings(environ: Mapping[str, str], state_dir: Path | None = None) -> OwnSettings:
    """Return the caller's settings; `state_dir` overrides theirs. Raises as :func:`read_settings`."""
    named = dict(environ) | ({"FFDL_STATE_DIR": str(state_dir)} if state_dir else {})
    settings = read_settings(named)
    return OwnSettings(settings, named | {"FFDL_STATE_DIR": settings.state_dir})


def describe_daemon(lock: DaemonLock) -> str:
    """Return the process, its host and its start time."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(lock.started_at)) if lock.started_at else "unknown"
    return f"process {lock.pid} on {lock.host}, since {since}"

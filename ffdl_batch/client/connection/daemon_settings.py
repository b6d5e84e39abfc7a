"""The settings of the caller, and whether the daemon that runs was started with others, or by another release.

A daemon reads the configuration once, when it starts. A command reads it too: a wrong file is an error at once, and a
changed one is not ignored in silence. The daemon's digests are in its lock file, so no request is needed to compare.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch import __version__
from ffdl_batch.client.connection.daemon_location import read_settings
from ffdl_batch.config.daemon_location import DaemonLock, LockUnreadable, SocketPlace, read_lock

if TYPE_CHECKING:
    from ffdl_batch.config import Settings

_NAMED = 3


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """What a daemon that the caller starts now would run with. `environ` names the state directory."""

    settings: Settings
    environ: Mapping[str, str]

    @property
    def state_dir(self) -> Path:
        """The state directory."""
        return Path(self.settings.state_dir)

    @property
    def written_at_start(self) -> tuple[Path, ...]:
        """The directories that a daemon writes in when it starts: its own, and its database's where that is a file."""
        scheme, _, path = self.settings.database.partition("?")[0].partition(":///")
        return (self.state_dir, Path(path).parent) if scheme.startswith("sqlite") and path else (self.state_dir,)

    def differ_from_daemon(self, place: SocketPlace) -> str | None:
        """The sentence for a daemon at `place` that is of another release or runs with other settings; None where it is
        as one that the caller starts.

        A daemon that is not the state directory's (a site's, by FFDL_SOCKET) has settings of its own.
        """
        with contextlib.suppress(LockUnreadable):  # a connected client needs no lock file
            lock = read_lock(self.state_dir)
            if lock is not None and (not place.named or lock.socket == str(place.path)):
                return self.differ_from(lock)
        return None

    def differ_from(self, lock: DaemonLock) -> str | None:
        """As :meth:`differ_from_daemon`, of the daemon that wrote `lock`."""
        from ffdl_batch.config.fingerprint import find_differences

        if lock.version and lock.version != __version__:
            return (
                f"the running daemon is of release {lock.version}, this program of {__version__} "
                f"({describe_daemon(lock)}); it stays until: ffdl daemon restart (which ends no job)"
            )
        found = find_differences(self.settings, self.environ, lock.settings)
        if not found:
            return None
        named = ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
        verb = "differs" if len(found) == 1 else "differ"
        return (
            f"{named} {verb} from what the running daemon was started with ({describe_daemon(lock)}); it keeps its own "
            "until: ffdl daemon restart"
        )


def own_settings(environ: Mapping[str, str], state_dir: Path | None = None) -> OwnSettings:
    """The caller's settings; `state_dir` overrides what they say. Raises as :func:`read_settings`."""
    named = dict(environ) | ({"FFDL_STATE_DIR": str(state_dir)} if state_dir else {})
    settings = read_settings(named)
    return OwnSettings(settings, named | {"FFDL_STATE_DIR": settings.state_dir})


def describe_daemon(lock: DaemonLock) -> str:
    """Which process on which host, and since when."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(lock.started_at)) if lock.started_at else "unknown"
    return f"process {lock.pid} on {lock.host}, since {since}"

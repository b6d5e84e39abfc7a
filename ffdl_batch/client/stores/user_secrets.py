"""The user's secrets, as files that only the user can read: on this machine, or on the host that commands go to."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.attempt.layout import Root
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import PlaceRefused, check_own_directory
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.ssh.errors import SshFailed

if TYPE_CHECKING:
    from ffdl_batch.client.connection.daemon_location import HostPlace
    from ffdl_batch.ssh.connection import Connector

_READ_S = 60.0


class UserSecrets:
    """The secrets on this machine, below `jobs_dir`."""

    sees_jobs = True
    """Whether the files of jobs can be read."""

    def __init__(self, jobs_dir: Path) -> None:
        self._jobs_dir = jobs_dir

    def own(self, name: str) -> bytes:
        """Return a secret by its name. Raises OSError, and DaemonUnreachable for a directory that other users can write
        to."""
        try:
            check_own_directory(self._jobs_dir, "jobs_dir")
        except PlaceRefused as refused:
            raise DaemonUnreachable.because(refused) from refused
        return self.file(Path(Root(str(self._jobs_dir)).secrets, name))

    def file(self, path: Path) -> bytes:
        """Return the content of a file of secrets. Raises OSError."""
        return path.read_bytes()


class UnreadableUserSecrets(UserSecrets):
    """The secrets behind a hub, which passes none on."""

    sees_jobs = False

    def __init__(self, hub: str) -> None:
        self._hub = hub

    def own(self, name: str) -> bytes:
        """See :class:`UserSecrets`."""
        return self.file(Path(name))

    def file(self, path: Path) -> bytes:
        """See :class:`UserSecrets`."""
        why = f"the hub {self._hub} passes on no secrets; run the command on the hub's host"
        raise PermissionError(errno.EACCES, why, str(path))


class RemoteUserSecrets(UserSecrets):
    """The secrets on another host. Its methods also raise DaemonUnreachable."""

    def __init__(self, place: HostPlace, connector: Connector) -> None:
        self._place, self._connector = place, connector
        self._known: Path | None = None

    def own(self, name: str) -> bytes:
        """See :class:`UserSecrets`."""
        if self._known is None:
            self._known = self._ask_jobs_dir()
        return self.file(Path(Root(str(self._known)).secrets, name))

    def file(self, path: Path) -> bytes:
        """See :class:`UserSecrets`."""
        words = ["/bin/sh", "-c", f'[ -e "$1" ] || exit {ExitCode.NO_INPUT}; exec cat -- "$1"', "sh", str(path)]
        try:
            ended = self._connector.run(words, _READ_S)
        except SshFailed as error:
            raise DaemonUnreachable.because(error) from error
        if ended.code == ExitCode.NO_INPUT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if ended.code:
            raise OSError(f"{self._place.host}: {ended.complaint}")
        return ended.out

    def _ask_jobs_dir(self) -> Path:
        from ffdl_batch.client.connection.remote_command import ask_remotely

        printed = ask_remotely(self._place, self._connector, ("config", "--json"))
        for line in reversed(printed.splitlines()):
            try:
                return Path(json.loads(line)["settings"]["jobs_dir"]["value"])
            except (ValueError, KeyError, TypeError):
                continue
        raise DaemonUnreachable(
            f"ffdl on {self._place.host} does not report where its secrets are",
            "install the same release on both",
            ExitCode.UNAVAILABLE,
        )

"""Detects changed configuration files, and decides whether the daemon can restart with the new settings.

A configuration that cannot be used changes nothing: the daemon keeps its settings, and :attr:`SettingsWatch.problem`
says why. This module only reads; :class:`ffdl_batch.daemon.server.Keeper` ends the daemon, and
:mod:`ffdl_batch.daemon.main` executes the program again in the same process.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ffdl_batch.config import ConfigError, Settings, load_settings
from ffdl_batch.config.fingerprint import take_fingerprints
from ffdl_batch.config.load import directory_file, lasting_files
from ffdl_batch.domain.scheduler_errors import InvalidRequest

if TYPE_CHECKING:
    from ffdl_batch.services.backends.adapters import Adapters

log = logging.getLogger(__name__)

_PLACES = ("state_dir", "jobs_dir", "database_url")
"""Settings that a daemon does not change by itself: with others it would have other jobs."""


class SettingsWatch:
    """The configuration files of a running daemon. Use it in one thread at a time."""

    def __init__(self, used: Settings, directory: Path | None) -> None:
        self.problem = ""
        """Why changed settings are not in use; "" = they are, or they will be when no command is connected."""
        self.restarts = False
        """Whether the daemon ends now to restart with changed settings."""
        self._used, self._directory = used, directory
        self._digests = take_fingerprints(used, os.environ)
        self._found: tuple[object, ...] = ()
        self._judged: tuple[object, ...] | None = None
        self._is_due = False

    def look(self, adapters: Adapters) -> bool:
        """Return whether the files have settings that the daemon does not use yet, and can use.

        The files are read when two looks have found the same change, so that an editor can finish writing.
        """
        earlier, self._found = self._found, self._identify()
        if self._found != earlier:
            return False
        if self._found != self._judged:
            self._judged, self._is_due = self._found, False
            try:
                self._is_due = self._judge(adapters)
                self._report("")
            except (ConfigError, InvalidRequest, OSError) as error:
                self._report(f"the daemon keeps its settings, because the changed ones cannot be used: {error}")
        return self._is_due

    def is_startable(self) -> bool:
        """Return whether the disk has space for a daemon to start."""
        from ffdl_batch.client.connection.daemon_process import try_to_write
        from ffdl_batch.client.connection.daemon_settings import OwnSettings

        for directory in OwnSettings(self._used, os.environ).written_at_start:
            try:
                try_to_write(directory)
            except OSError as error:
                self._report(f"changed settings are not used yet, because {directory} cannot be written to: {error}")
                return False
        self._report("")
        return True

    def _judge(self, adapters: Adapters) -> bool:
        new = load_settings(cwd=self._directory)
        digests = take_fingerprints(new, os.environ)
        changed = [key for key in digests if digests[key] != self._digests[key]]
        if moved := [key for key in _PLACES if key in changed]:
            raise ConfigError(f"{', '.join(moved)} would change; to apply it: ffdl daemon restart")
        if changed:
            adapters.check(new)
            log.info("changed settings: %s; restarting when no command is connected", ", ".join(changed))
        return bool(changed)

    def _identify(self) -> tuple[object, ...]:
        """Return a value that changes with each of the files, or when one is created or removed."""
        named, own = os.environ.get("FFDL_CONFIG"), directory_file(self._directory)
        files = [*lasting_files(os.environ), *([own] if own else []), *([Path(named)] if named else [])]
        return tuple((str(path), *_identity(path)) for path in files)

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


def _identity(path: Path) -> tuple[int, ...]:
    """Return what differs after a change of content, owner or mode; () for a file that is missing."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

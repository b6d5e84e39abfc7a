"""Creates the daemon's socket file, checks it, and creates it again if it was removed; or uses the spawner's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import ClassVar

from ffdl_batch.config.daemon_location import PlaceRefused, SocketPlace, check_directory, socket_place

BACKLOG = 512
INHERITED = 3
"""Descriptor of the socket that the spawner passes, as in sd_listen_fds(3)."""


def is_inherited(environ: Mapping[str, str]) -> bool:
    """Return whether this process was started with one listening socket."""
    return environ.get("LISTEN_PID") == str(os.getpid()) and environ.get("LISTEN_FDS") == "1"


def report_readiness(environ: MutableMapping[str, str]) -> None:
    """Notify systemd that clients can connect, if it waits for that; see sd_notify(3)."""
    manager = environ.pop("NOTIFY_SOCKET", "")
    if manager:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked:
            asked.sendto(b"READY=1", f"\0{manager[1:]}" if manager.startswith("@") else manager)


class Listener:
    """A listening Unix socket and its file. Use it only with the daemon's lock: an existing file is stale then."""

    is_own: ClassVar[bool] = True
    """Whether the daemon creates the socket and can create it again; else the site's spawner does."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.path = Path()
        self._identity: tuple[int, ...] | None = None

    def open(self) -> socket.socket:
        """Bind the socket at its path and listen. Raises :class:`PlaceRefused`."""
        place = socket_place(self._environ)
        make_directory(place)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            place.path.unlink(missing_ok=True)
            listening.bind(os.fspath(place.path))  # mode 0700 by the daemon's umask
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            raise PlaceRefused(
                f"the socket {place.path} cannot be created: {error.strerror or error}",
                "set FFDL_SOCKET to another path",
            ) from error
        self.path = place.path
        self._identity = _identity(place.path)
        return listening

    def is_in_place(self) -> bool:
        """Return whether this socket is at its path (logging out removes the runtime directory)."""
        return self._identity is not None and _identity(self.path) == self._identity

    def remove(self) -> None:
        """Remove the file, unless it belongs to another daemon now."""
        if self.is_in_place():
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        self._identity = None


class InheritedListener(Listener):
    """The socket that the spawner has bound. It is in a directory of root, so this process cannot remove its file."""

    is_own = False

    def open(self) -> socket.socket:
        """Return the socket, which listens since :func:`ffdl_batch.daemon.main.main`."""
        self.path = Path(self._environ["FFDL_SOCKET"])
        self._identity = _identity(self.path)
        self._listening = socket.socket(fileno=INHERITED)
        self._listening.set_inheritable(False)
        self._listening.setblocking(False)
        return self._listening

    def remove(self) -> None:
        """Let the kernel refuse new clients, because the file is root's. Those in the backlog see their connection end
        without an answer, and ask the spawner again. Call in the event loop."""
        if self._listening.fileno() != -1:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.shutdown(socket.SHUT_RD)


def make_directory(place: SocketPlace) -> None:
    """Create the directory of the socket, or check it. Raises :class:`PlaceRefused`."""
    directory = place.path.parent
    try:
        directory.mkdir(mode=0o700, parents=place.named, exist_ok=True)
    except OSError as error:
        raise PlaceRefused(
            f"the socket's directory {directory} cannot be created: {error.strerror}", "set FFDL_SOCKET to another path"
        ) from error
    if not place.named:
        check_directory(directory, closed=False)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return an identity that a later file of the same name does not have, even with the same inode; chmod keeps it."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, stat.S_IFMT(found.st_mode)

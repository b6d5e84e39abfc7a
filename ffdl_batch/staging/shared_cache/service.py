"""The service of a shared cache: hands out open descriptors of contents, on a Unix socket.

For each request the service reads one byte of the object from the store, with the signature of the reader. So the store
decides about each reader and each version. The service downloads missing contents itself: no user can plant one. It has
no credentials, runs as an account of its own, and imports the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from random import SystemRandom

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import read_credentials
from ffdl_batch.staging.shared_cache.blobs import Blobs
from ffdl_batch.staging.shared_cache.fair_cache import FairCache
from ffdl_batch.staging.shared_cache.fair_lottery import fair_lottery
from ffdl_batch.staging.shared_cache.store_check import (
    REQUEST_BYTES,
    Refused,
    Wanted,
    parse_request,
    read_object,
    require_access,
)

CONNECTIONS, CONNECTIONS_OF_USER = 64, 8
REQUEST_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """What the administrator has set."""

    directory: str
    socket: str
    stores: Sequence[str]
    limit: int
    window_s: float
    note: Callable[[str], None]
    """Gets the report at the end of each window."""
    step: Callable[[str], None] = field(default=lambda _step: None)
    """Tests kill the process in it."""


class Service:
    """One service. `serve` returns after `stop`."""

    def __init__(self, place: Place) -> None:
        """Raises OSError."""
        self._place, self._blobs = place, Blobs(place.directory, place.step)
        self.cache = FairCache(place.limit, SystemRandom())
        self.hits, self.misses = Counter[str](), Counter[str]()
        """Tenant -> bytes."""
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._filling: dict[str, tuple[threading.Lock, int]] = {}
        """Object -> its lock, and the number of threads that use it."""
        self._open = Counter[int]()
        for content, size in self._blobs.sizes().items():
            self.cache.hold(content, size)
        for content in self.cache.victims("", 0) or ():  # the limit is lower than before
            self._remove(content)

    def serve(self) -> None:
        """Answer requests. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(self._place.socket)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(self._place.socket)
            os.chmod(self._place.socket, 0o666)  # noqa: S103 - every user may ask
            listening.listen(CONNECTIONS)
            listening.settimeout(0.5)
            windows = threading.Thread(target=self._end_windows, daemon=True)
            windows.start()
            while not self._stopped.is_set():
                with suppress(TimeoutError):
                    self._accept(listening.accept()[0])
            windows.join()
        self._blobs.close()

    def stop(self) -> None:
        """Make `serve` return. May be called in a signal handler."""
        self._stopped.set()

    def report(self) -> str:
        """Return one line of JSON: what each user read, and was charged for."""
        with self._lock:
            users = sorted({*self.hits, *self.misses, *self.cache.filled, *self.cache.kept})
            return json.dumps(
                {
                    "held_bytes": self.cache.bytes,
                    "licensed": len(self.cache.licensed),
                    "gap": round(self.cache.lottery.gap, 4),
                    "users": {
                        user: {
                            "hit_bytes": self.hits[user],
                            "miss_bytes": self.misses[user],
                            "charged_fill_bytes": round(self.cache.filled[user]),
                            "charged_kept_bytes": round(self.cache.kept[user]),
                        }
                        for user in users
                    },
                }
            )

    def end_window(self) -> None:
        """End a window, and pass the report on."""
        with self._lock:
            demands, sizes = self.cache.demands()
        lottery = fair_lottery(demands, sizes, self._place.limit)  # may take seconds
        with self._lock:
            self.cache.begin_window(demands, lottery)
        self._place.note(self.report())

    def _end_windows(self) -> None:
        while not self._stopped.wait(self._place.window_s):
            self.end_window()

    def _accept(self, connection: socket.socket) -> None:
        uid = read_credentials(connection).uid
        with self._lock:
            is_admitted = self._open[uid] < CONNECTIONS_OF_USER and self._open.total() < CONNECTIONS
            self._open[uid] += is_admitted
        if is_admitted:
            threading.Thread(target=self._answer, args=(connection, uid), daemon=True).start()
        else:
            connection.close()

    def _answer(self, connection: socket.socket, uid: int) -> None:
        descriptor = None
        try:
            with connection:
                try:
                    _require_account(uid)
                    descriptor = self._served(str(uid), parse_request(_line(connection), self._place.stores))
                    answer, passed = b'{"served": true}\n', [descriptor]
                except Refused as why:
                    answer, passed = json.dumps({"served": False, "why": str(why)}).encode() + b"\n", []
                except OSError as error:
                    why_not = f"the cache failed: {error.strerror or type(error).__name__}"
                    answer, passed = json.dumps({"served": False, "why": why_not}).encode() + b"\n", []
                with suppress(OSError):  # the reader has gone
                    socket.send_fds(connection, [answer], passed)
        finally:
            if descriptor is not None:
                os.close(descriptor)
            with self._lock:
                self._open[uid] -= 1
                if not self._open[uid]:
                    del self._open[uid]

    def _served(self, tenant: str, wanted: Wanted) -> int:
        """Return a descriptor of the object's content. Raises Refused, OSError."""
        require_access(wanted)
        name = _name(wanted)
        with self._alone(name):
            found = self._held(tenant, name, wanted.size)
            if found is not None:
                return found
            return self._filled(tenant, name, wanted)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Let one thread at a time work with an object."""
        with self._lock:
            lock, count = self._filling.get(name, (threading.Lock(), 0))
            self._filling[name] = (lock, count + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _, count = self._filling[name]
                self._filling[name] = (lock, count - 1)
                if count == 1:
                    del self._filling[name]

    def _held(self, tenant: str, name: str, size: int) -> int | None:
        """Record the demand. Return a descriptor if the content is held and not damaged."""
        with self._lock:
            content = self._blobs.content.get(name)
            if not self.cache.ask(tenant, content or name, size) or content is None:
                self.misses[tenant] += size
                return None
            descriptor = self._blobs.open(content)
            self._blobs.note_use(content)
        if self._blobs.is_intact(descriptor, content, size):
            with self._lock:
                self.hits[tenant] += size
            return descriptor
        os.close(descriptor)
        with self._lock:
            self.misses[tenant] += size
            if self._blobs.content.get(name) == content:
                self._remove(content)
        return None

    def _filled(self, tenant: str, name: str, wanted: Wanted) -> int:
        with self._lock:
            victims = self.cache.victims(name, wanted.size)
            if victims is None:
                raise Refused("the cache has no room for it in this window")
            for victim in victims:
                self._remove(victim)
            self.cache.reserved[name] = wanted.size
        try:
            path, content = self._blobs.fill(lambda write: read_object(wanted, write))
            with self._lock:
                self._blobs.place(path, content, name)
                self.cache.rename(name, content)
                self.cache.hold(content, wanted.size)
                self.cache.charge_fill(tenant, content, wanted.size)
                return self._blobs.open(content)
        finally:
            with self._lock:
                del self.cache.reserved[name]

    def _remove(self, content: str) -> None:
        self.cache.drop(content)
        self._blobs.remove(content)


def _name(wanted: Wanted) -> str:
    whole = json.dumps((wanted.store, wanted.path, wanted.etag, wanted.size))
    return hashlib.sha256(whole.encode()).hexdigest()


def _require_account(uid: int) -> None:
    """Raises Refused for uids of user namespaces and others that are no account: each would be a tenant."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise Refused(f"user {uid} is not in the password database") from None


def _line(connection: socket.socket) -> bytes:
    data, end = b"", time.monotonic() + REQUEST_S
    while not data.endswith(b"\n"):
        connection.settimeout(max(0.001, end - time.monotonic()))
        more = connection.recv(REQUEST_BYTES + 1 - len(data))
        data += more
        if not more or len(data) > REQUEST_BYTES:
            raise Refused("the request is incomplete or too long")
    return data

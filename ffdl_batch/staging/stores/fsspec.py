"""Any other store, by fsspec and the library that it names for the protocol.

Objects are read in ranges. They are written as a whole: under a temporary name and renamed if the protocol can rename,
else directly, as object stores show an object only when it is complete. The ETag, or else size and time, shows whether
an object is still the same. Links are not listed. fsspec has no resumption, so S3, GCS and Swift have stores of their
own.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.staging.faults import (
    ERRORS_OF_ONE,
    FULL_ERRORS,
    Fault,
    ObjectChanged,
    Stopped,
    TemporaryFailure,
    UnreadableObject,
)
from ffdl_batch.staging.object_names import PART_NAME, part_name
from ffdl_batch.staging.stores.digests import hex_of_base64, is_md5
from ffdl_batch.staging.stores.sftp import sftp_options, sftp_system
from ffdl_batch.staging.stores.store import CHUNK_BYTES, UNKNOWN, Item, Sent, in_pages, library

SFTP = ("sftp", "ssh")
_LOCAL = ("file", "local")
OWN_OPTIONS = ("protocol", "timeout_s", "path_style", "ca_file", "known_hosts", "key_file")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "modificationTime", "updated", "created")
_ETAGS = ("ETag", "etag")
_MD5S = ("md5", "md5Hash", "content_md5")


class FsspecStore:
    """The directory or container `container` of a store. Each thread has its own connection."""

    def __init__(
        self, address: StoreAddress, credentials: Mapping[str, str], unreadable: Callable[[str, OSError], None]
    ) -> None:
        """`unreadable` gets directories that cannot be read, except the one that a listing begins with."""
        self._unreadable = unreadable
        self._protocol = address.options.get("protocol", "")
        if not self._protocol:
            raise Fault(FaultClass.TASK, "its options name no protocol")
        self._base = address.container.rstrip("/") if address.container.strip("/") else address.container[:1]
        self._fsspec = library("fsspec", "fsspec")
        self._make, self._options = self._system(address, credentials)
        self._own, self._lock = threading.local(), threading.Lock()
        self._open: list[Any] = []

    def listing(self, prefix: str, start_after: str = "") -> Iterator[list[Item]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        with self._classified(prefix):
            yield from in_pages(self._walk(prefix.rstrip("/"), start_after))

    def head(self, key: str) -> Item | None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        with self._classified(key):
            system = self._here()
            system.invalidate_cache()
            try:
                return _item(key, system.info(self._path(key)))
            except (FileNotFoundError, NotADirectoryError):
                return None

    @contextmanager
    def read(self, item: Item, start: int, end: int) -> Iterator[Iterator[bytes]]:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        with self._classified(item.key):
            system = self._here()
            try:
                with self._unreadable_object():
                    file = system.open(self._path(item.key), "rb")
            except FileNotFoundError:
                raise ObjectChanged from None
        try:
            yield self._chunks(file, item, start, item.size if end == UNKNOWN else end)
        finally:
            with suppress(Exception):
                file.close()

    def _chunks(self, file: Any, item: Item, start: int, end: int) -> Iterator[bytes]:
        with self._classified(item.key), self._unreadable_object():
            if end != UNKNOWN and hasattr(file, "readv"):  # sftp: all of it is asked for before the first answer
                pieces = [(at, min(CHUNK_BYTES, end - at)) for at in range(start, end, CHUNK_BYTES)]
                for data in file.readv(pieces):
                    if not data:
                        raise ObjectChanged
                    yield data
                return
            if start:
                file.seek(start)
            while end == UNKNOWN or start < end:
                data = file.read(CHUNK_BYTES if end == UNKNOWN else min(CHUNK_BYTES, end - start))
                if not data and end != UNKNOWN:
                    raise ObjectChanged
                if not data:
                    return
                start += len(data)
                yield data

    def put(self, key: str, sent: Sent) -> str:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        path = self._path(key)
        above, _, name = path.rpartition("/")
        with self._classified(key):
            system = self._here()
            if above:
                system.makedirs(above, exist_ok=True)
            renames = _renames(system)
            beside = part_name(os.uname().nodename, name)  # a later try uses it again
            written = (f"{above}/{beside}" if "/" in path else beside) if renames else path
            with system.open(written, "wb") as writer:
                if hasattr(writer, "set_pipelined"):
                    writer.set_pipelined(True)
                for data in sent.chunks():
                    writer.write(data)
            system.invalidate_cache()
            found = system.info(written)
            if found.get("size") not in (None, sent.size):
                raise TemporaryFailure(f"{found['size']} of {sent.size} bytes were stored")
            if renames:
                self._rename(system, written, path)
                found = system.info(path)
        made = _item(key, found)
        return made.etag if made else ""

    def close(self) -> None:
        """See :class:`ffdl_batch.staging.stores.store.Store`."""
        with self._lock:
            systems, self._open = self._open, []
        for system in systems:
            _end(system)

    @staticmethod
    def _rename(system: Any, written: str, path: str) -> None:
        try:
            system.mv(written, path)
        except FileExistsError:  # protocols whose rename replaces nothing
            system.rm_file(path)
            system.mv(written, path)

    def _walk(self, above: str, start_after: str) -> Iterator[Item]:
        """Yield the files below, in the order of keys. Raises what the library raises."""
        system = self._here()
        system.invalidate_cache()
        try:
            entries = self._entries(system, above)
        except (FileNotFoundError, NotADirectoryError):
            if not above or not system.exists(self._path("")):
                raise Fault(FaultClass.MISSING, "there is no such directory or container") from None
            return
        path = self._path(above).strip("/")
        if any(str(info["name"]).strip("/") == path for info in entries):  # a file, which stands for itself
            return
        waiting = [sorted(_children(above, entries), reverse=True)]
        start = len(above) + 1 if above else 0
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                continue
            key, _, info = waiting[-1].pop()
            if not key.endswith("/"):
                item = _item(key, info)
                if item is not None and key > start_after and not PART_NAME.fullmatch(key.rsplit("/", 1)[-1]):
                    yield item
            elif key > start_after or start_after.startswith(key):
                waiting.append(self._below(system, key[:-1], key[start:-1]))

    def _below(self, system: Any, key: str, name: str) -> list[tuple[str, int, dict[str, Any]]]:
        """Return what is in a directory, in the reverse order of keys; nothing if it was removed meanwhile or cannot be
        read. `name` is relative to the directory that is listed. Raises what the library raises."""
        try:
            return sorted(_children(key, self._entries(system, key)), reverse=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            found = self._error_of_one(error)
            if found is None:
                raise
            self._unreadable(name, found)
            return []

    def _entries(self, system: Any, key: str) -> list[dict[str, Any]]:
        """Return the entries of a directory. Raises what the library raises.

        OpenSSH's sftp-server lists a directory as empty if it may be read but not entered (sftp-server.c,
        process_readdir).
        """
        path = self._path(key)
        entries: list[dict[str, Any]] = system.ls(path, detail=True)
        if not entries and self._protocol in SFTP:
            system.info(f"{path}/.")
        return entries

    @contextmanager
    def _unreadable_object(self) -> Iterator[None]:
        """Raise UnreadableObject for errors that concern only the object that is read."""
        try:
            yield
        except OSError as error:
            found = self._error_of_one(error)
            if found is None:
                raise
            raise UnreadableObject(found) from error

    def _error_of_one(self, error: OSError) -> OSError | None:
        """Return the error with a number, if it concerns only one file or directory. Over a network, I/O errors may be
        temporary."""
        if isinstance(error, PermissionError):
            number = error.errno or errno.EACCES
            return OSError(number, error.strerror or str(error) or os.strerror(number))
        return error if self._protocol in _LOCAL and error.errno in ERRORS_OF_ONE else None

    def _path(self, key: str) -> str:
        if not key:
            return self._base or "."
        return key if not self._base else f"{self._base.rstrip('/')}/{key}"

    def _system(self, address: StoreAddress, credentials: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
        if self._protocol in SFTP:
            return sftp_system(), sftp_options(address, credentials)
        try:
            made = self._fsspec.get_filesystem_class(self._protocol)
        except ImportError as error:
            raise Fault(FaultClass.LIBRARY, f"a library is missing here: {error}") from error
        except ValueError:
            raise Fault(FaultClass.TASK, f"fsspec knows no protocol {self._protocol}") from None
        options: dict[str, Any] = {name: value for name, value in address.options.items() if name not in OWN_OPTIONS}
        if address.endpoint:
            host, _, port = address.endpoint.rpartition("://")[2].strip("/").partition(":")
            options |= {"host": host} | ({"port": number} if (number := whole_number(port, 65535)) is not None else {})
        renamed = {"user_name": "username"}
        return made, options | {renamed.get(name, name): value for name, value in credentials.items()}

    def _here(self) -> Any:
        """Return this thread's connection. Raises what the library raises."""
        system = getattr(self._own, "system", None)
        if system is None:
            try:
                system = self._make(**self._options, skip_instance_cache=True)
            except TypeError as error:
                raise Fault(FaultClass.TASK, f"{self._protocol} does not take its options: {error}") from error
            self._own.system = system
            with self._lock:
                self._open.append(system)
        return system

    @contextmanager
    def _classified(self, key: str) -> Iterator[None]:
        """Convert failures of the library to TemporaryFailure, Fault or ObjectChanged. After a temporary one, the next
        call opens a new connection."""
        try:
            yield
        except (TemporaryFailure, Fault, ObjectChanged, Stopped, UnreadableObject):
            raise
        except Exception as error:
            fault = _fault(error, key)
            if fault is not None:
                raise fault from error
            system = getattr(self._own, "system", None)
            if system is not None:
                self._own.system = None
                with self._lock:
                    self._open = [other for other in self._open if other is not system]
                _end(system)
            raise TemporaryFailure(str(error) or type(error).__name__) from error


def _fault(error: Exception, key: str) -> Fault | None:
    """Return the fault; None if the failure may be temporary."""
    kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno in FULL_ERRORS:
        return Fault(FaultClass.FULL, text, key)
    if isinstance(error, PermissionError) or any("Authentication" in kind for kind in kinds):
        return Fault(FaultClass.CREDENTIALS, text, key)
    if isinstance(error, FileNotFoundError):
        return Fault(FaultClass.MISSING, "there is nothing of that name", key)
    if isinstance(error, NotImplementedError):
        return Fault(FaultClass.REFUSED, "this protocol cannot do that", key)
    if isinstance(error, ImportError):
        return Fault(FaultClass.LIBRARY, f"a library is missing here: {error}")
    if isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
        return Fault(FaultClass.REFUSED, text, key)
    return None if isinstance(error, (OSError, EOFError)) or _is_of_library(error) else Fault(FaultClass.REFUSED, text)


def _is_of_library(error: Exception) -> bool:
    """Return whether the error comes from a library. Built-in errors come from a wrong option."""
    return type(error).__module__ != "builtins"


def _children(above: str, entries: list[dict[str, Any]]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the keys of files, and those of directories with a slash at the end. Links are left out."""
    for number, info in enumerate(entries):
        name = str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
        key = f"{above}/{name}" if above else name
        if info.get("islink") or not name:
            continue
        if info.get("type") == "directory":
            yield f"{key}/", number, info
        elif info.get("type") == "file":
            yield key, number, info


def _item(key: str, info: Mapping[str, Any]) -> Item | None:
    if info.get("type") != "file" or info.get("islink"):
        return None
    size = info.get("size")
    mtime = next((_seconds(info[name]) for name in _TIMES if info.get(name)), 0.0)
    etag = next((str(info[name]).strip('"') for name in _ETAGS if info.get(name)), "")
    size = UNKNOWN if size is None else int(size)
    if not etag and mtime:
        etag = f"{size:x}-{round(mtime * 1e9):x}"
    return Item(key, size, etag, mtime, size != UNKNOWN, True, _digests(info))


def _digests(info: Mapping[str, Any]) -> dict[str, str]:
    settings = info.get("content_settings")
    fields = {**info, **(settings if isinstance(settings, Mapping) else {})}
    for name in _MD5S:
        value = fields.get(name)
        found = _hexadecimal(value)
        if found:
            return {"md5": found}
    return {}


def _hexadecimal(value: object) -> str:
    """Convert an MD5 in bytes, hexadecimal digits or Base64 to hexadecimal digits; "" for anything else."""
    if isinstance(value, (bytes, bytearray)):
        return value.hex() if len(value) == 16 else ""
    if not isinstance(value, str):
        return ""
    if is_md5(value):
        return value
    found = hex_of_base64(value)
    return found if is_md5(found) else ""


def _seconds(moment: Any) -> float:
    if hasattr(moment, "timestamp"):
        return float(moment.timestamp())
    return float(moment) if isinstance(moment, (int, float)) else 0.0


def _renames(system: Any) -> bool:
    """Return whether the protocol has a rename. The default of fsspec copies and deletes."""
    return any("mv" in vars(kind) for kind in type(system).__mro__ if kind.__name__ != "AbstractFileSystem")


def _end(system: Any) -> None:
    close = getattr(getattr(system, "client", None), "close", None)
    if close is not None:
        with suppress(Exception):
            close()

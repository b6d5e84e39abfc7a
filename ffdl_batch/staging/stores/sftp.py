"""SFTP by fsspec, with checks of the host key: fsspec's own class accepts any host key.

An unknown host and a host whose key has changed are different errors: somebody may answer in the place of the second.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import shlex
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffdl_batch.domain.data.staging_protocol import FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress
from ffdl_batch.domain.number_text import whole_number
from ffdl_batch.staging.faults import Fault, TemporaryFailure, shown
from ffdl_batch.staging.stores.store import library

KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "~/.ssh/known_hosts")


def sftp_system() -> Any:
    """Return fsspec's class with a connection that refuses hosts whose key is not in `known_hosts`, and with a type of
    its own for pipes, sockets and devices: fsspec's class takes them for files, and opening a pipe waits for ever."""
    paramiko, made = library("paramiko", "sftp"), library("fsspec.implementations.sftp", "sftp")
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # what it has to say is raised, too

    def connect(self: Any) -> None:
        options = dict(self.ssh_kwargs)
        files, timeout_s = options.pop("known_hosts"), options["timeout"]

        def refuse(_self: Any, _client: Any, _name: str, key: Any) -> None:
            raise unknown_host(self.host, options["port"], files[-1], key.get_name(), key.asbytes())

        self.client = paramiko.SSHClient()
        policy = type("RefusesUnknown", (paramiko.MissingHostKeyPolicy,), {"missing_host_key": refuse})
        self.client.set_missing_host_key_policy(policy())
        for file in files:
            with suppress(OSError):
                self.client.load_system_host_keys(str(Path(file).expanduser()))
        try:
            self.client.connect(self.host, **options)
            self.ftp = self.client.open_sftp()
        except BaseException as error:
            self.client.close()
            if isinstance(error, paramiko.BadHostKeyException):
                known, key = error.expected_key.asbytes(), error.key
                raise changed_host(self.host, options["port"], key.get_name(), key.asbytes(), known) from error
            if why := why_unreachable(error, f"{self.host}:{options['port']}", timeout_s):
                raise TemporaryFailure(why) from error
            raise
        self.ftp.get_channel().settimeout(timeout_s)

    def decode(found: Any, above: str | None = None) -> dict[str, Any]:
        info: dict[str, Any] = made.SFTPFileSystem._decode_stat(found, above)
        if info["type"] == "file" and not stat.S_ISREG(found.st_mode):
            info["type"] = "other"
        return info

    functions = {"_connect": connect, "_decode_stat": staticmethod(decode)}
    return type("KnownHostSftp", (made.SFTPFileSystem,), functions)


def unknown_host(host: str, port: int, file: str, kind: str, key: bytes) -> Fault:
    """Return the fault for a host whose key is in no file. `file` is where its key would be added, `kind` and `key`
    are what it showed."""
    scan = f"ssh-keyscan -p {port} {shlex.quote(host)} >> {file if file.startswith('~/') else shlex.quote(file)}"
    cause = f"its host key is not known yet: {shown(file)} has none of {host} port {port}"
    cure = (
        f"compare the key that it showed, {kind} {fingerprint(key)}, with the one that its administrators publish; if "
        f"they are the same, run `{scan}`, or name a file that has it as the store's option known_hosts"
    )
    return Fault(FaultClass.REFUSED, cause, cure=cure)


def changed_host(host: str, port: int, kind: str, key: bytes, known: bytes) -> Fault:
    """Return the fault for a host whose key differs from the known one."""
    cause = (
        f"DANGER: its host key is not the one of known_hosts: {host} port {port} showed {kind} {fingerprint(key)}, "
        f"{fingerprint(known)} is known; it has a new key, or another host answers in its place"
    )
    cure = "no credentials were sent; replace the line in known_hosts only if the administrators confirm the new key"
    return Fault(FaultClass.REFUSED, cause, cure=cure)


def fingerprint(key: bytes) -> str:
    """Return the fingerprint as ssh-keygen -l shows it."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip('=')}"


def why_unreachable(error: BaseException, place: str, timeout_s: float) -> str:
    """Return why there is no connection to this host and port; "" for other errors.

    paramiko's own message for a port that refuses has no number and no reason (3.5; NoValidConnectionsError.errors has
    them).
    """
    tried = getattr(error, "errors", None)
    first = next(iter(tried.values()), error) if isinstance(tried, dict) else error
    if isinstance(first, socket.gaierror):
        return f"{place}: the host's name cannot be looked up ({first.strerror})"
    if isinstance(first, TimeoutError):
        return f"{place} did not answer within {timeout_s:g} s"
    if isinstance(first, ConnectionRefusedError):
        return f"{place} refused the connection: nothing listens there"
    if isinstance(first, (FileNotFoundError, PermissionError)):  # of a file of keys
        return ""
    if isinstance(first, OSError) and first.strerror:
        return f"{place} cannot be reached: {first.strerror}"
    if "protocol banner" in str(error) or str(error) == "No existing session":  # by which of them comes first
        return f"{place} did not greet as an SSH server does"
    return ""


def sftp_options(address: StoreAddress, credentials: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the connection. Without credentials, the user's own keys are used. Raises Fault."""
    host, _, port = address.endpoint.rpartition("://")[2].strip("/").partition(":")
    if not host or (port and whole_number(port, 65535) is None):
        raise Fault(FaultClass.TASK, "its endpoint names no host")
    options, timeout_s = address.options, float(address.options.get("timeout_s", "60"))
    own = not {"password", "private_key"} & set(credentials) and not options.get("key_file")
    made: dict[str, Any] = {
        "host": host,
        "port": int(port or 22),
        "timeout": timeout_s,
        "banner_timeout": timeout_s,
        "auth_timeout": timeout_s,
        "look_for_keys": own,
        "allow_agent": own,
        "known_hosts": [options["known_hosts"]] if options.get("known_hosts") else list(KNOWN_HOSTS),
    }
    if credentials.get("user_name"):
        made["username"] = credentials["user_name"]
    if options.get("key_file"):
        made["key_filename"] = options["key_file"]
    if "private_key" in credentials:
        made["pkey"] = _key(credentials["private_key"], credentials.get("password"))
    elif "password" in credentials:
        made["password"] = credentials["password"]
    return made


def _key(text: str, password: str | None) -> Any:
    paramiko = library("paramiko", "sftp")
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        with suppress(paramiko.SSHException, ValueError, IndexError):
            return kind.from_private_key(io.StringIO(text), password)
    raise Fault(FaultClass.CREDENTIALS, "its private_key is not the text of a key, or its password is another")

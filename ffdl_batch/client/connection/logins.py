"""The file of the tokens that ``ffdl login`` stored: ``~/.config/ffdl/tokens.toml``, which only its owner can read."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from ffdl_batch.attempt.file_writer import write_text
from ffdl_batch.attempt.reader import open_regular
from ffdl_batch.client.connection.daemon_location import logins_file
from ffdl_batch.client.connection.hub import HubPlace, parse_hub
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.config.daemon_location import find_other_writers
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.toml_text import parse_toml, toml_text
from ffdl_batch.host.fast_dataclass import dataclass

_HEADER = "# Written by `ffdl login`. Anyone who has a token can act as you; `ffdl token revoke` revokes it.\n"


@dataclass(frozen=True, slots=True)
class Login:
    """A token for a hub, and its account."""

    token: str = field(repr=False)
    ca: str = ""
    """As in :class:`HubPlace`."""
    account: str = ""


@dataclass(frozen=True, slots=True)
class Logins:
    """The content of the file."""

    newest: str = ""
    """The address of the hub that the user logged in to last."""
    hubs: Mapping[str, Login] = field(default_factory=dict)

    def place(self, url: str) -> HubPlace:
        """Return the hub with its token, if there is one. Raises DaemonUnreachable for an invalid address."""
        hub = parse_hub(url)
        login = self.hubs.get(hub.url)
        return hub if login is None else replace(hub, token=login.token, ca=login.ca)


def read_logins(environ: Mapping[str, str]) -> Logins:
    """Return the stored tokens. Raises DaemonUnreachable for a file that others can read, or that is damaged."""
    path = logins_file(environ)
    try:
        with open_regular(str(path)) as file:
            _refuse_others(path, os.fstat(file.fileno()))
            table = parse_toml(file.read())
        hubs = {url: Login(**_texts(login)) for url, login in table.get("hubs", {}).items()}
        return Logins(str(table.get("newest", "")), hubs)
    except (FileNotFoundError, NotADirectoryError):
        return Logins()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        cure = f"remove it, and log in again: rm {shlex.quote(str(path))}"
        raise DaemonUnreachable(f"{path} cannot be used: {why}", cure, ExitCode.BAD_MANIFEST) from error


def write_logins(environ: Mapping[str, str], logins: Logins) -> Path:
    """Replace the file, and return its path. Raises DaemonUnreachable."""
    path = logins_file(environ)
    lines = [f"{toml_text(url)} = {toml_text(asdict(login))}\n" for url, login in sorted(logins.hubs.items())]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := find_other_writers(path.parent.stat(), (os.geteuid(),)):
            cure = f"run: chmod go-w {shlex.quote(str(path.parent))}"
            raise DaemonUnreachable(f"{path.parent} {why}; no token is stored there", cure, ExitCode.NOT_ALLOWED)
        write_text(path, f"{_HEADER}newest = {toml_text(logins.newest)}\n\n[hubs]\n{''.join(lines)}", 0o600)
    except OSError as error:
        raise DaemonUnreachable(f"{path} cannot be written: {error.strerror}", "", ExitCode.FAILED) from error
    return path


def _refuse_others(path: Path, found: os.stat_result) -> None:
    """Raise DaemonUnreachable if users other than the caller can read or write the file."""
    if why := find_other_writers(found, (os.geteuid(),), 0o077, "read or write it"):
        raise DaemonUnreachable(
            f"{path} contains tokens, and {why}",
            f"run: chmod 600 {shlex.quote(str(path))}; if others may have read it, revoke the tokens: ffdl token list",
            ExitCode.NOT_ALLOWED,
        )


def _texts(plain: Any) -> dict[str, str]:
    """Return a table of texts. Raises ValueError for other values."""
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        raise ValueError("an entry is not a table of texts")
    return plain

"""Connects to a site's hub over TLS. The hub passes requests on to the daemon of the token's owner.

It connects directly: proxies in the environment are not used. The certificate and its name are always checked.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import field
from typing import TYPE_CHECKING
from urllib.parse import quote

from ffdl_batch.client.connection.http_client import DirectChannel, HubLogin, Request, Wire, json_request
from ffdl_batch.client.errors import DaemonUnreachable
from ffdl_batch.domain.access import HUB_API, login_payload, new_token, write_login
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import printable, quoted
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.munge import MungeFailed, encode
from ffdl_batch.host.resource_exhaustion import explain_lack

if TYPE_CHECKING:
    import ssl

_URL = re.compile(r"https://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?/?", re.ASCII)
_NONCE = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)
_PORT = 443
_CONNECT_S = 15.0
_LOGINS, _DEVICE_LOGINS = f"{HUB_API}/logins", f"{HUB_API}/device-logins"
_VERIFICATION_URL = re.compile(r"https://[!-~]+", re.ASCII)
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A hub, with the stored token and certificates of the user."""

    host: str
    port: int = _PORT
    token: str = field(default="", repr=False)
    ca: str = ""
    """Certificates of the site's own authority, as PEM; "" = the system's authorities."""

    @property
    def netloc(self) -> str:
        """Host and port, as in the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORT else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address without a final slash, and without the default port."""
        return f"https://{self.netloc}"


def parse_hub(text: str) -> HubPlace:
    """Return the hub of an address. Raises DaemonUnreachable (exit code 78)."""
    found = _URL.fullmatch(text.strip())
    port = int(found[2] or _PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise DaemonUnreachable(
            f"{quoted(text)} is not the address of a hub",
            "write https://HOST or https://HOST:PORT",
            ExitCode.BAD_MANIFEST,
        )
    return HubPlace(found[1].strip("[]").lower(), port)


def dial_hub(place: HubPlace) -> DirectChannel:
    """Connect to the hub. Raises DaemonUnreachable with its cause and cure."""
    if not place.token:
        raise DaemonUnreachable(
            f"you are not logged in to the hub {place.url}",
            f"run: ffdl login {place.url}; for a daemon of this machine: export FFDL_HUB=",
            ExitCode.NOT_ALLOWED,
        )
    return DirectChannel(_open_tls(place), HubLogin(place.url, place.netloc, place.token))


def obtain_token(place: HubPlace, name: str, report: Callable[[str], None]) -> str:
    """Create a token, and prove to the hub and to the caller's daemon by munge that it is the caller's; see
    docs/decisions/0017-hub.md. Return its text. Raises ClientError, also if munge cannot be used."""
    certificates: list[str] = []

    def dial() -> DirectChannel:
        connected = _open_tls(place)
        certificates.append(hashlib.sha256(connected.getpeercert(binary_form=True) or b"").hexdigest())
        return DirectChannel(connected, HubLogin(place.url, place.netloc, ""))

    token = new_token()
    with closing(Wire(dial, report)) as wire:
        begun = wire.ask(Request("POST", _LOGINS))
        nonce, hub_uid = begun.get("nonce"), begun.get("hub_uid")
        if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce) or not isinstance(hub_uid, int):
            raise _no_hub(place)
        try:
            to_hub = encode(login_payload(nonce, certificates[-1]), reader=hub_uid)
            to_daemon = encode(write_login(token, name), reader=os.getuid())
        except MungeFailed as error:
            cure = "on a machine of no cluster: ffdl login --browser, or --token with a token of `ffdl token create`"
            raise DaemonUnreachable(f"you cannot log in by munge: {error}", cure, ExitCode.UNAVAILABLE) from error
        wire.ask(json_request("POST", f"{_LOGINS}/{quote(nonce, safe='')}", {"to_hub": to_hub, "to_daemon": to_daemon}))
    return token.text


def offers_device_logins(place: HubPlace, report: Callable[[str], None]) -> bool:
    """Return whether the hub logs users in by the site's OpenID provider. Raises ClientError."""
    with closing(_unidentified(place, report)) as wire:
        return wire.ask(Request("GET", f"{HUB_API}/health")).get("device_logins") is True


def obtain_token_by_browser(
    place: HubPlace, name: str, report: Callable[[str], None], show: Callable[[str, str], None]
) -> tuple[str, str]:
    """Make a token, and wait until the user has confirmed the login in a browser; see docs/decisions/0019-oidc.md.
    `show` gets the address to open and the code to enter. Return the token's text, and the account that the hub names.
    Raises ClientError."""
    token = new_token()
    with closing(_unidentified(place, report)) as wire:
        login = write_login(token, name).decode("ascii")
        begun = wire.ask(json_request("POST", _DEVICE_LOGINS, {"login": login}))
        key, code, seconds = begun.get("login"), begun.get("user_code"), begun.get("seconds")
        address = begun.get("verification_uri_complete") or begun.get("verification_uri")
        if not (
            isinstance(key, str) and _NONCE.fullmatch(key) and isinstance(seconds, int | float)
            and isinstance(address, str) and _VERIFICATION_URL.fullmatch(address)
        ):  # fmt: skip
            raise _no_hub(place)
        show(address, printable(str(code), one_line=True))
        deadline = time.monotonic() + seconds
        while "account" not in begun:
            time.sleep(min(_LONGEST_PAUSE_S, max(0.0, float(begun.get("interval_s", _LONGEST_PAUSE_S)))))
            begun = wire.ask_until(Request("POST", f"{_DEVICE_LOGINS}/{key}"), deadline)
    return token.text, printable(str(begun["account"]), one_line=True)


def _unidentified(place: HubPlace, report: Callable[[str], None]) -> Wire:
    """Return a connection to the hub without a token."""
    return Wire(lambda: DirectChannel(_open_tls(place), HubLogin(place.url, place.netloc, "")), report)


def _no_hub(place: HubPlace) -> DaemonUnreachable:
    return DaemonUnreachable(f"{place.url} does not answer like a hub", "check the address", ExitCode.UNAVAILABLE)


def _open_tls(place: HubPlace) -> ssl.SSLSocket:
    connected = _connect(place)
    try:
        return _wrap(place, connected)
    except BaseException:
        connected.close()
        raise


def _connect(place: HubPlace) -> socket.socket:
    try:
        connected = socket.create_connection((place.host, place.port), _CONNECT_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except socket.gaierror as error:
        is_lasting = error.errno != socket.EAI_AGAIN
        raise DaemonUnreachable(
            f"the hub {place.url} cannot be reached: its name is unknown ({error.strerror})",
            "check the address" if is_lasting else "check the network; then try again",
            ExitCode.UNAVAILABLE if is_lasting else ExitCode.TRY_AGAIN,
        ) from error
    except UnicodeError as error:
        raise DaemonUnreachable(f"{quoted(place.host)} is not the name of a host", "", ExitCode.BAD_MANIFEST) from error
    except OSError as error:
        why = error.strerror or f"no answer within {_CONNECT_S:g} s"
        cure = explain_lack(error) or "try again later, or ask the administrators whether it is running"
        raise DaemonUnreachable(f"the hub {place.url} cannot be reached: {why}", cure) from error
    return connected


def _wrap(place: HubPlace, connected: socket.socket) -> ssl.SSLSocket:
    import ssl

    try:
        context = ssl.create_default_context(cadata=place.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        return context.wrap_socket(connected, server_hostname=place.host)
    except ssl.SSLCertVerificationError as error:
        raise DaemonUnreachable(
            f"the certificate of {place.url} is not accepted, and nothing was sent: {error.verify_message}",
            f"check the address; if the site has its own authority: ffdl login {place.url} --ca FILE",
            ExitCode.NOT_ALLOWED,
        ) from error
    except ssl.SSLEOFError as error:
        raise DaemonUnreachable(f"the hub {place.url} closed the connection", "try again later") from error
    except ssl.SSLError as error:
        message = f"the TLS connection to {place.url} failed: {error.reason or error}"
        raise DaemonUnreachable(message, "check the address and the port", ExitCode.UNAVAILABLE) from error
    except OSError as error:
        why = error.strerror or f"no answer within {_CONNECT_S:g} s"
        raise DaemonUnreachable(f"the hub {place.url} cannot be reached: {why}", "try again later") from error

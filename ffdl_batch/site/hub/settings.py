"""Read the table ``[hub]`` of the site file."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.site.hub.tokens.token_index import account_name

SITE_FILE = Path("/etc/ffdl/site.toml")
_PATHS = ("socket", "certificate", "key", "audit_file", "run_dir", "oidc_ca", "kubeconfig")
_OF_SPAWNER, _OF_SITE = ("run_dir", "min_uid", "tenants"), ("trust_hub_sessions",)
"""Settings of the hub from the table `[spawner]`, and from the beginning of the site file."""
_MOST_PORTS = 1 << 16
_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]*@|[?&]password=", re.ASCII)
_ISSUER = re.compile(r"https://[A-Za-z0-9.:\[\]-]+(?:/[!-~]*)?", re.ASCII)
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?", re.ASCII)
_KINDS = {bool: "true or false", int: "a number", str: "a text"}


class SettingsRefused(Exception):
    """The site file cannot be used. The text names file, key and cause."""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The settings of the hub. Raises ValueError for values that do not fit together."""

    socket: str = "/run/ffdl-hub/hub.sock"
    """Socket for daemons, and for operators on this host. Its directory belongs to the hub."""
    listen: str = ""
    """Address and port for HTTPS; "" for none. Without a certificate it must be a loopback address, for a proxy."""
    certificate: str = ""
    """PEM file with the certificate and the intermediate certificates. SIGHUP reads it again."""
    key: str = ""
    """PEM file with the private key."""
    database_url: str = "sqlite:////var/lib/ffdl-hub/hub.db"
    audit_file: str = ""
    """A copy of the audit, one JSON object in each line; "" for standard error only, which systemd passes on."""
    operators: list[str] | tuple[()] = ()
    """Users, and groups as ``@group``, who may see the states of all jobs, and halt and cancel them."""
    auditors: list[str] | tuple[()] = ()
    """Users and groups who may see the states of all jobs."""
    requests_per_minute: int = 1200
    """Maximum number of requests of one user."""
    requests_at_once: int = 64
    """Maximum number of unanswered requests of one user, including streams."""
    wrong_tokens_per_minute: int = 30
    """Maximum number of requests with an invalid token from one address."""
    listing_interval_s: int = 5
    """Seconds between two queries to slurmctld for the jobs of all users; 0: none."""
    trusted_proxies: list[str] | tuple[()] = ()
    """Addresses and networks of proxies in front of the hub. They put the client's address in X-Forwarded-For."""
    cors_origins: list[str] | tuple[()] = ()
    """Origins of web pages that may send requests with a token, such as ``https://dashboard.example.org``."""
    log_json: bool = False
    """Whether the hub writes its log as JSON, one object per line. The audit log is always JSON."""
    oidc_issuer: str = ""
    """Address of the site's OpenID provider, exactly as it names itself; "" = no login by OpenID Connect."""
    oidc_client_id: str = ""
    """The hub's own client at the provider: a public one that may use device authorization."""
    oidc_claim: str = "preferred_username"
    """Claim of the ID token that is the name of the user's account."""
    oidc_scope: str = "openid profile"
    """Scopes to request, so that the ID token has the claim."""
    oidc_ca: str = ""
    """PEM file with the authority of the provider's certificate; "" = the system's authorities."""
    kubeconfig: str = ""
    """Kubeconfig of the hub, with which it requests tokens for tenants' daemons. Only the hub's account may read it."""
    tenants: Mapping[str, int] = field(default_factory=dict)
    """Uids of the daemons of tenants without accounts, by name; from the table `[spawner]`."""
    run_dir: str = "/run/ffdl"
    """Directory with the sockets of the spawner and of the daemons; from the table `[spawner]`."""
    min_uid: int = 1000
    """The smallest uid of a user; from the table `[spawner]`."""
    trust_hub_sessions: bool = False
    """Whether daemons accept logins that only the hub has checked. They read it from the same file."""

    def __post_init__(self) -> None:
        for name in _PATHS:
            if (path := getattr(self, name)) and not path.startswith("/"):
                raise ValueError(f"{name} must be an absolute path, not {path!r}")
        for name in ("requests_per_minute", "requests_at_once", "wrong_tokens_per_minute"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.listing_interval_s < 0:
            raise ValueError("listing_interval_s must be at least 0")
        if _PASSWORD.search(self.database_url):
            raise ValueError("database_url must have no password, because all users read this file: use PGPASSFILE")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key must be set together")
        if bool(self.oidc_issuer) != bool(self.oidc_client_id):
            raise ValueError("oidc_issuer and oidc_client_id must be set together")
        if self.oidc_issuer and not _ISSUER.fullmatch(self.oidc_issuer):
            raise ValueError(f"oidc_issuer must be an address as https://HOST, not {self.oidc_issuer!r}")
        if self.listen and not _is_loopback(self.listen_address[0]) and not self.certificate:
            raise ValueError("listen must be a loopback address, for a proxy, if no certificate is set")

        self._check_lists()

    def _check_lists(self) -> None:
        for network in self.trusted_proxies:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ValueError(f"trusted_proxies: {error}") from error
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"cors_origins: {origin!r} is not an origin such as https://HOST[:PORT]")

    def account_of(self, uid: int) -> str:
        """Return the name of the account of a uid, or of the tenant whose daemon has it; "" if there is none."""
        return next((name for name, own in self.tenants.items() if own == uid), "") or account_name(uid)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of `listen`. Raises ValueError if it has no port."""
        host, _, port = self.listen.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < _MOST_PORTS):
            raise ValueError(f"listen must be ADDRESS:PORT, such as 0.0.0.0:8443 or [::]:8443, not {self.listen!r}")
        return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(path: Path = SITE_FILE) -> HubSettings:
    """Return the settings. Raises SettingsRefused."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != 0 or status.st_mode & 0o022:
                raise SettingsRefused(f"{path} must be owned by root and writable only by root")
            site = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise SettingsRefused(f"{path} cannot be read: {error}") from error
    table, spawner = site.get("hub", {}), site.get("spawner", {})
    if not isinstance(table, dict) or not isinstance(spawner, dict):
        raise SettingsRefused(f"{path}: hub and spawner must be tables")
    try:
        for key in table.keys() & {*_OF_SPAWNER, *_OF_SITE}:
            raise ValueError(f"{key} belongs {'in [spawner]' if key in _OF_SPAWNER else 'before all tables'}")
        others = {key: spawner[key] for key in _OF_SPAWNER if key in spawner}
        others |= {key: site[key] for key in _OF_SITE if key in site}
        values = table | others
        _check_types(values)
        return HubSettings(**values)
    except ValueError as error:
        raise SettingsRefused(f"{path}: [hub]: {error}") from error


def _check_types(table: Mapping[str, Any]) -> None:
    known = {one.name: one.default for one in fields(HubSettings)}
    for key, value in table.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ValueError(f"unknown key {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
        if key == "tenants":
            uids = list(value.values()) if isinstance(value, dict) else [""]
            if not all(type(uid) is int for uid in uids) or len(set(uids)) < len(uids):
                raise ValueError("tenants must be a table of different uids, such as {vision = 70001}")
        elif known[key] == ():
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise ValueError(f'{key} must be a list of texts, such as ["a", "b"]')
        elif type(value) is not type(known[key]):
            raise ValueError(f"{key} must be {_KINDS[type(known[key])]}")

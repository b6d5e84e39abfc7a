"""Roles and scopes of a daemon's callers, the format of tokens, and where the hub has its own routes. Daemon, hub and
client share them."""

from __future__ import annotations

import re
from dataclasses import field
from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass


class Role(StrEnum):
    """The role in which a caller uses a daemon. ``docs/reference/http-api.md`` has the rights of each."""

    OWNER = "owner"
    """The daemon's user; in personal mode also root."""
    TOKEN = "token"  # noqa: S105 - the name of a role
    """A program with a token of the owner; its scopes decide."""
    HUB = "hub"
    """The hub itself, which passes a login on."""
    OPERATOR = "operator"
    AUDITOR = "auditor"


class Scope(StrEnum):
    """What a token permits."""

    READ = "read"
    WRITE = "write"
    TOKENS = "tokens"


HUB_API = "/api/site/v1"
"""Prefix of the hub's own routes. It passes all others on to daemons."""
ID_LENGTH = 12
_ID = "abcdefghijklmnopqrstuvwxyz0123456789"
_TOKEN = re.compile(r"ffdl_([0-9a-z]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_LOGIN = re.compile(rb"ffdl-token ([0-9a-z]{12}) ([0-9a-f]{64}) ([ -~]{1,80})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its text is ``ffdl_ID_SECRET``. The prefix lets programs that search for secrets find it."""

    id: str
    secret: str = field(repr=False)
    """256 random bits in the alphabet of URLs (RFC 4648, section 5)."""

    @property
    def text(self) -> str:
        """The text that its owner uses."""
        return f"ffdl_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """The SHA-256 of the secret, which the daemon stores. Random bits need no slow hash."""
        import hashlib

        return hashlib.sha256(self.secret.encode("ascii")).hexdigest()


def new_token() -> Token:
    """Return a random token."""
    import secrets

    return Token("".join(secrets.choice(_ID) for _ in range(ID_LENGTH)), secrets.token_urlsafe(32))


def parse_token(text: str) -> Token | None:
    """Return the token with this text; None if the text does not have the format."""
    found = _TOKEN.fullmatch(text)
    return Token(found[1], found[2]) if found is not None else None


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token without its secret. Times are seconds since the epoch."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller, as the daemon identifies it."""

    uid: int
    account: str
    role: str
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    """None for a caller without a token."""


@dataclass(frozen=True, slots=True)
class Login:
    """A token that `ffdl login` has created, without the secret."""

    id: str
    name: str
    digest: str


def write_login(token: Token, name: str) -> bytes:
    """Return the text for the daemon, which is the payload of its munge credential."""
    return f"ffdl-token {token.id} {token.digest} {name}".encode("ascii", "replace")


def rename_login(text: str, name: str) -> str:
    """Return the text of a login with another name of the token. Raises ValueError."""
    login = read_login(text.encode("ascii"))
    return f"ffdl-token {login.id} {login.digest} {name}"


def login_payload(nonce: str, certificate_sha256: str) -> bytes:
    """Return the payload of the credential for the hub, with its nonce and its certificate (hexadecimal)."""
    return f"ffdl-login {nonce} {certificate_sha256}".encode("ascii")


def read_login(payload: bytes) -> Login:
    """Return the token that the text of a login names. Raises ValueError."""
    found = _LOGIN.fullmatch(payload)
    if found is None:
        raise ValueError("it names no token")
    token_id, digest, name = (part.decode("ascii") for part in found.groups())
    return Login(token_id, name, digest)

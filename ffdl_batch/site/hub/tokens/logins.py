"""Let users of other login nodes prove by munge who they are (docs/decisions/0017-hub.md)."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ffdl_batch.domain.access import login_payload
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem
from ffdl_batch.host.munge import TTL_S, Decoded, MungeFailed, decode
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.callers import refuse

MOST_OPEN, MOST_OPEN_OF_PEER = 1000, 50
"""Maximum number of unfinished logins, in total and from one address."""


class Logins:
    """Nonces that were issued and not used. Use it in one event loop, :meth:`verify` in a thread."""

    def __init__(self, certificate: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._certificate, self._clock = certificate, clock
        self._open: dict[str, tuple[float, str]] = {}
        """Until when a nonce is valid, and who asked for it."""

    def begin(self, peer: str) -> Mapping[str, object]:
        """Return a new nonce, and the uid to which the credential for the hub must be restricted. Raises Refused."""
        now = self._clock()
        self._open = {nonce: begun for nonce, begun in self._open.items() if begun[0] > now}
        if not self._certificate:
            cure = "set certificate in [hub] of the site file, also behind a proxy"
            raise Refused(
                Problem("C101", "this hub has no certificate, which logins by munge need", ExitCode.UNAVAILABLE, cure),
                409,
            )
        of_peer = sum(begun[1] == peer for begun in self._open.values())
        if len(self._open) >= MOST_OPEN or of_peer >= MOST_OPEN_OF_PEER:
            raise Refused(Problem("S210", "too many logins are unfinished", ExitCode.TRY_AGAIN, "wait a minute"), 429)
        nonce = secrets.token_urlsafe(24)
        self._open[nonce] = (now + TTL_S, peer)
        return {"nonce": nonce, "hub_uid": os.geteuid(), "seconds": TTL_S}

    def take(self, nonce: str) -> None:
        """Invalidate a nonce. Raises Refused if it was not issued, is too old, or was used before."""
        if self._open.pop(nonce, (0.0, ""))[0] <= self._clock():
            raise refuse(401, "the login has expired or was already completed", "ffdl login")

    def verify(self, nonce: str, credential: str) -> int:
        """Return the uid that a credential for the hub proves. Raises Refused."""
        try:
            found = decode(credential)
        except MungeFailed as error:
            raise refuse(401, f"the munge credential is not valid: {error}", "ffdl login") from error
        if not self._is_for_this_login(found, nonce):
            raise refuse(401, "the munge credential is for another login, hub or certificate", "ffdl login")
        return found.uid

    def _is_for_this_login(self, found: Decoded, nonce: str) -> bool:
        expected = login_payload(nonce, fingerprint(Path(self._certificate)))
        is_ours = found.reader == os.geteuid() and found.ttl_s <= TTL_S
        return is_ours and secrets.compare_digest(found.payload, expected)


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of the first certificate in a PEM file, in hexadecimal."""
    text = certificate.read_text(encoding="ascii", errors="replace")
    first = text[: text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN CERTIFICATE-----") :])).hexdigest()


def read_login(body: bytes) -> tuple[str, str]:
    """Return the credentials for the hub and for the daemon. Raises Refused."""
    try:
        found = json.loads(body)
        to_hub, to_daemon = found["to_hub"], found["to_daemon"]
    except (ValueError, TypeError, KeyError, RecursionError):
        to_hub = to_daemon = None
    if not isinstance(to_hub, str) or not isinstance(to_daemon, str):
        raise Refused(Problem("C101", "to_hub and to_daemon must be munge credentials", ExitCode.USAGE), 422)
    return to_hub, to_daemon

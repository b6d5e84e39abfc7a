"""Send mail by SMTP: one message to a relay, encrypted if the relay offers that, and always with a login.

It uses only the standard library. If the relay refuses a recipient, :class:`MailNotSent` has its reply and the
recipients that it accepted.
"""

from __future__ import annotations

import os
import re
import smtplib
import ssl
import stat
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path

from ffdl_batch.host.fast_dataclass import dataclass

TIMEOUT_S = 60.0
SMTP_PORT, SMTPS_PORT = 25, 465
_ADDRESS = re.compile(r"[^\s@<>,;:\"\x00-\x1f\x7f]+@[^\s@<>,;:\"\x00-\x1f\x7f]+")
_TRANSIENT = range(400, 500)
_REFUSED_LOGIN = (530, 534, 535, 538)


class MailNotSent(Exception):
    """The relay refused the mail, or part of it.

    `may_pass`: a later try may succeed. `not_allowed`: the relay refuses the sender. `taken`: recipients that got it.
    """

    def __init__(
        self, message: str, *, may_pass: bool = False, not_allowed: bool = False, taken: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.may_pass, self.not_allowed, self.taken = may_pass, not_allowed, tuple(taken)


@dataclass(frozen=True, slots=True)
class Login:
    """User and password for a relay."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ...)"


@dataclass(frozen=True, slots=True)
class Relay:
    """A mail relay.

    Its certificate is verified if there is a `login` or a `ca_file` ("" = none). Otherwise encryption is used without
    verification. Port 465 is encrypted from the first byte.
    """

    host: str
    port: int = SMTP_PORT
    login: Login | None = None
    ca_file: str = ""

    @property
    def is_verified(self) -> bool:
        """Whether its certificate is verified."""
        return self.login is not None or bool(self.ca_file)


def read_relay(text: str) -> tuple[str, int]:
    """Return host and port of ``mail.example.org``, ``mail.example.org:587`` or ``[::1]:25``. Raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?", text)
    port = int(match[3]) if match is not None and match[3] else SMTP_PORT
    if match is None or not 1 <= port <= 65535:
        raise ValueError(f"{text[:60]!r} is not a mail relay; use HOST or HOST:PORT")
    return match[1] or match[2], port


def read_address(text: str) -> str:
    """Return a plain mail address. Raises ValueError."""
    if _ADDRESS.fullmatch(text) is None or not text.isascii():
        raise ValueError(f"{text[:60]!r} is not a mail address; use for example ops@example.org")
    return text


def read_login(path: Path) -> Login:
    """Return user and password, the two lines of a file that only its owner may read. Raises ValueError, OSError."""
    with path.open(encoding="utf-8") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ValueError(f"{path} has a password, but other users may read it: chmod 600 {path}")
        lines = file.read(4096).splitlines()
    if len(lines) != 2 or not all(lines):
        raise ValueError(f"{path} must have two lines: the user name, and the password")
    return Login(*lines)


def send(relay: Relay, message: EmailMessage, sender: str, recipients: Sequence[str]) -> None:
    """Send the message to all of `recipients`. Raises MailNotSent."""
    where = f"{relay.host}:{relay.port}"
    try:
        with _connected(relay) as smtp:
            if relay.login is not None:
                smtp.login(relay.login.user, relay.login.password)
            refused = smtp.send_message(message, sender, list(recipients))
    except smtplib.SMTPRecipientsRefused as error:
        raise _not_taken(where, error.recipients) from error
    except smtplib.SMTPResponseException as error:
        said = _text(error.smtp_error)
        raise MailNotSent(
            f"{where} refused the mail: {error.smtp_code} {said}",
            may_pass=error.smtp_code in _TRANSIENT,
            not_allowed=error.smtp_code in _REFUSED_LOGIN,
        ) from error
    except smtplib.SMTPNotSupportedError as error:
        raise MailNotSent(f"{where} does not support a request: {error}") from error
    except ssl.SSLCertVerificationError as error:
        raise MailNotSent(
            f"the certificate of {where} cannot be verified: {error.verify_message}", not_allowed=True
        ) from error
    except (smtplib.SMTPException, OSError) as error:
        raise MailNotSent(f"{where} cannot be reached: {error}", may_pass=True) from error
    if refused:
        raise _not_taken(where, refused, [one for one in recipients if one not in refused])


def _connected(relay: Relay) -> smtplib.SMTP:
    """Return a connection, encrypted if possible. Raises the errors of smtplib."""
    context = _context(relay)
    if relay.port == SMTPS_PORT:
        return smtplib.SMTP_SSL(relay.host, relay.port, timeout=TIMEOUT_S, context=context)
    smtp = smtplib.SMTP(relay.host, relay.port, timeout=TIMEOUT_S)
    try:
        smtp.ehlo_or_helo_if_needed()
        if smtp.has_extn("starttls"):
            smtp.starttls(context=context)
        elif relay.is_verified:
            raise smtplib.SMTPNotSupportedError("it does not offer STARTTLS, and the login would be readable")
    except BaseException:
        smtp.close()
        raise
    return smtp


def _context(relay: Relay) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=relay.ca_file or None)
    if not relay.is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _not_taken(where: str, refused: dict[str, tuple[int, bytes]], taken: Sequence[str] = ()) -> MailNotSent:
    said = "; ".join(f"{address}: {code} {_text(text)}" for address, (code, text) in sorted(refused.items()))
    may_pass = all(code in _TRANSIENT for code, _ in refused.values())
    return MailNotSent(f"{where} refused the mail for {said}", may_pass=may_pass, taken=taken)


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said

"""A mail relay on loopback that keeps what it takes, and refuses when told to."""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

from aiosmtpd.controller import Controller

if TYPE_CHECKING:
    from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass
class Taken:
    """One message, and the addresses of its envelope."""

    sender: str
    recipients: list[str]
    message: EmailMessage


@dataclass
class Relay:
    """What came. `answer` is what it says to the next messages in the place of taking them ("" = they are taken)."""

    port: int = 0
    taken: list[Taken] = field(default_factory=list)
    answer: str = ""

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - the library's
        """The library calls it with each message."""
        if self.answer:
            return self.answer
        content: Any = envelope.content
        message = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.taken.append(Taken(envelope.mail_from or "", list(envelope.rcpt_tos), message))
        return "250 taken"


class _AnyPort(Controller):
    """The library's looks whether it is served at the port that it was told, which 0 is not."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@contextmanager
def mail_relay() -> Iterator[Relay]:
    """A relay until the block is left."""
    relay = Relay()
    controller = _AnyPort(relay, hostname="127.0.0.1", port=0)
    controller.start()
    try:
        relay.port = controller.port
        yield relay
    finally:
        controller.stop()

"""Sends one notice of an incident, by mail or by a webhook."""

from __future__ import annotations

import email.policy
import json
import socket
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.incidents.incident import IncidentRow
from ffdl_batch.domain.incidents.site_settings import Channel, Notice, NoticeSettings
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.network_address import split_webhook, without_query
from ffdl_batch.host.egress import Networks, bounded
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.notify.chat import chat_post
from ffdl_batch.notify.mail import MailNotSent, Relay, read_login, read_relay, send
from ffdl_batch.notify.webhook import WebhookRefused, post

HEADER_CHARS = 250
"""A subject is one line: programs that sort mail do not all read folded ones. RFC 5322 allows 998."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a notice was not accepted."""

    reason: str
    may_pass: bool
    """Whether a later try may succeed."""


def deliver(
    notice: Notice, row: IncidentRow, settings: NoticeSettings, user: str, egress: Networks | None
) -> Refusal | None:
    """Send a notice; return None if the receiver accepted it. `user` is the owner of the daemon. `egress` bounds the
    addresses of webhooks."""
    try:
        if notice.channel is Channel.MAIL:
            _mail(notice, row, settings, user)
        else:
            with bounded(egress):
                _post(notice, row, settings)
    except (MailNotSent, WebhookRefused) as error:
        return Refusal(str(error), error.may_pass)
    except (OSError, ValueError) as error:  # a file of the configuration
        return Refusal(str(error), may_pass=True)
    return None


def _mail(notice: Notice, row: IncidentRow, settings: NoticeSettings, user: str) -> None:
    login = read_login(Path(settings.login_file)) if settings.login_file else None
    sender = settings.sender or f"{user}@{socket.getfqdn()}"
    relay = Relay(*read_relay(settings.smtp), login, settings.ca_file)
    send(relay, write_mail(notice, row, sender), sender, [notice.address])


def _post(notice: Notice, row: IncidentRow, settings: NoticeSettings) -> None:
    path = settings.webhook_key_file
    key = Path(path).read_bytes().strip() if path else b""
    chat, url = split_webhook(notice.address)
    body: Mapping[str, Any] = write_body(notice, row)
    if chat:
        url, body = chat_post(chat, url, _title(row), "\n".join(_lines(row)))
    post(url, json.dumps(body).encode(), notice.id, key, named=without_query(notice.address))


def write_body(notice: Notice, row: IncidentRow) -> dict[str, Any]:
    """Return the JSON body for a webhook. A repeated notice has the same `id`."""
    return {"schema": SCHEMA, "id": notice.id, "incident": to_plain(row)}


def write_mail(notice: Notice, row: IncidentRow, sender: str) -> EmailMessage:
    """Return the mail about one incident."""
    mail = EmailMessage(email.policy.default.clone(max_line_length=HEADER_CHARS))
    mail["From"], mail["To"] = sender, notice.address
    mail["Subject"] = _title(row)[:200]
    mail["Message-ID"] = f"<{notice.id}@ffdl-batch>"
    mail["Auto-Submitted"] = "auto-generated"
    first = _line(f"{row.job} ({row.name}) of {row.user}, attempt {row.attempt}: {row.title}")
    mail.set_content("\n".join([first, "", *_lines(row), ""]))
    return mail


def _title(row: IncidentRow) -> str:
    return _line(f"{row.job} ({row.name}): {row.title}")


def _lines(row: IncidentRow) -> list[str]:
    """Return what happened, and what helps, line by line."""
    lines = [row.message] if row.message else []
    lines += [f"What helps: {row.cure}"]
    lines += [f"Nodes: {', '.join(row.nodes)}"] if row.nodes else []
    lines += [f"Work to be done again: {row.lost_gpu_hours:.2f} GPU-hours"] if row.lost_gpu_hours else []
    lines += ["", *(f"  {one.source}: {one.text}" for one in row.evidence), "", f"ffdl show {row.job}"]
    return [_line(line) for line in lines]


def _line(text: str) -> str:
    """Return text of a user's log as one line that a mail header can hold: no line breaks, no lone surrogates."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(sign if sign.isprintable() else " " for sign in clean)

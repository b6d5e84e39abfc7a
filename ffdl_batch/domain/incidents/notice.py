"""Who is told of incidents when they happen, and what of it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ffdl_batch.domain.incidents.incident import Origin


class Channel(StrEnum):
    """How somebody is told."""

    MAIL = "mail"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """``[notices]`` of the configuration: for each of `mail` and `webhooks` every incident from `origins` is a notice.

    `smtp` is the relay, as ``host`` or ``host:port`` ("" = no mail is sent, not that of manifests either); `sender` the
    address that mail comes from ("" = user@host). `login_file` and `ca_file` are the relay's. `webhook_key_file` holds
    the key that signs what webhooks get ("" = nothing is signed).
    """

    mail: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = tuple(Origin)
    smtp: str = ""
    sender: str = ""
    login_file: str = ""
    ca_file: str = ""
    webhook_key_file: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """One incident for one address. `id` is the same at each try. Times in seconds since the epoch."""

    id: str
    job_id: str
    attempt: int
    episode: str
    channel: Channel
    address: str
    tries: int = 0

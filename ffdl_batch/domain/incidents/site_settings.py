"""What a site sets about incidents: fault policies, the exclusion of nodes, and notices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ffdl_batch.domain.incidents.incident import Origin

POLICY = "policy "
"""How the source of evidence begins by which a policy is named in an incident."""


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """A regular expression for lines of learners' logs at an abnormal end (Python's; it is searched for in each line).

    `kind` is that of the incident ("" = what it is anyway). `exclude_node`: the job's next attempts keep off the node
    of that learner. `stop_retrying`: no attempt follows. `notify` are addresses that are told of it.
    """

    name: str
    match: str
    kind: str = ""
    exclude_node: bool = False
    stop_retrying: bool = False
    notify: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Whether our jobs keep off nodes that failed often: those with a score of `threshold` and more, for `hours` after
    the last fault, and never more than `percent` of a partition's nodes."""

    exclude_unreliable: bool = False
    threshold: float = 4.0
    hours: float = 24.0
    percent: float = 5.0


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

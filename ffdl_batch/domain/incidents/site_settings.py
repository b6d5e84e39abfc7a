"""What a site sets about incidents: fault policies, the exclusion of nodes, and notices."""

from __future__ import annotations

from enum import StrEnum

from ffdl_batch.domain.incidents.incident import Origin
from ffdl_batch.host.fast_dataclass import dataclass

POLICY = "policy "
"""Prefix of the source of evidence that names a policy."""


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """A site's rule for lines of learners' logs at an abnormal end."""

    name: str
    match: str
    """A regular expression (Python's), which is searched for in each line."""
    kind: str = ""
    """Kind of the incident; "" = the one that it has without the policy."""
    exclude_node: bool = False
    """Whether the next attempts of the job exclude the node of that learner."""
    stop_retrying: bool = False
    """Whether no further attempt follows."""
    notify: tuple[str, ...] = ()
    """Addresses that get a notice."""


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Whether jobs keep off nodes that failed often."""

    exclude_unreliable: bool = False
    threshold: float = 4.0
    """Least score of an excluded node."""
    hours: float = 24.0
    """Duration of the exclusion after the last fault."""
    percent: float = 5.0
    """Maximum share of a partition's nodes."""


class Channel(StrEnum):
    """How a notice is sent."""

    MAIL = "mail"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """``[notices]`` of the configuration: each of `mail` and `webhooks` gets a notice of every incident from
    `origins`."""

    mail: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = tuple(Origin)
    smtp: str = ""
    """The relay, as ``host`` or ``host:port``; "" = no mail is sent, not even that which manifests request."""
    sender: str = ""
    """Sender of mail; "" = user@host."""
    login_file: str = ""
    """Credentials for the relay."""
    ca_file: str = ""
    """Certificates that verify the relay."""
    webhook_key_file: str = ""
    """File with the key that signs the requests to webhooks; "" = they are not signed."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One incident for one address."""

    id: str
    """The same at each try."""
    job_id: str
    attempt: int
    episode: str
    channel: Channel
    address: str
    tries: int = 0

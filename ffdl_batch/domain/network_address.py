"""Parses hosts and URLs that users write. No other module may call `urllib.parse.urlsplit`: it raises for some texts.

Pure. Runs on Python 3.9.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse

from ffdl_batch.host.fast_dataclass import dataclass

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)


@dataclass(frozen=True)
class Url:
    """The parts of a URL."""

    scheme: str
    authority: str
    """User, host and port, as written."""
    host: str
    """In lower case, without the brackets of an IPv6 address."""
    port: int
    """0 = the default of the scheme."""
    path: str
    has_query: bool
    """Whether a query or a fragment follows the path."""


def parse_url(text: str) -> Url | None:
    """Return the parts of a URL; None if its host or port is malformed. Parts that are missing are empty."""
    try:
        split = urllib.parse.urlsplit(text)
        host, port = split.hostname or "", split.port
        if set("[]") & set(split.netloc):
            ipaddress.IPv6Address(host)
    except ValueError:
        return None
    bracket = split.netloc.rpartition("@")[2].partition("]")[2]
    if port == 0 or not (bracket == "" or bracket.startswith(":")):
        return None
    return Url(split.scheme, split.netloc, host, port or 0, split.path, bool(split.query or split.fragment))


CHATS = ("slack", "mattermost", "teams", "ntfy")
"""Chat services whose form a webhook can have: the address is ``slack+https://HOST/PATH``, for example."""


def split_webhook(address: str) -> tuple[str, str]:
    """Return the chat service of the address of a webhook ("" = none), and the URL."""
    chat, plus, url = address.partition("+")
    return (chat, url) if plus and chat in CHATS else ("", address)


def is_webhook(text: str) -> bool:
    """Return whether the text is the address of a web server, or that of a chat service."""
    return is_web_address(split_webhook(text)[1])


def without_query(address: str) -> str:
    """Return the address of a webhook for messages: without user, password and query, which often hold secrets, and
    without the path if that is the secret of a chat service."""
    chat, text = split_webhook(address)
    url = parse_url(text)
    if url is None:
        return "the webhook"
    return f"{url.scheme}://{url.authority.rpartition('@')[2]}{'' if chat else url.path}"


def is_authority(text: str) -> bool:
    """Return whether `text` is ``HOST[:PORT]``. Some private resolvers know names with underscores."""
    url = parse_url(f"//{text}")
    return url is not None and url.authority == text and "@" not in text and is_host(url.host.replace("_", "-0"))


def is_web_address(text: str) -> bool:
    """Return whether the text is the address of a web server."""
    url = parse_url(text)
    return url is not None and url.scheme in ("http", "https") and bool(url.host) and not re.search(r"\s", text)


def is_host_name(text: str) -> bool:
    """Return whether the text has the form of a host's name or of an IPv4 address."""
    return bool(_NAME.fullmatch(text))


def is_host(host: str) -> bool:
    """Return whether this may be the name of a host, or is an IP address.

    Resolvers take a name that ends in a number for an IPv4 address.
    """
    is_number = bool(_NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]))
    if is_number or ":" in host:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True
    return is_host_name(host)

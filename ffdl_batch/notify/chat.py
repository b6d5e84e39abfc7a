"""Write a notice in the form of a chat service: Slack, Mattermost, Microsoft Teams or ntfy.

Texts of users' logs cannot mention people: Slack's control characters are escaped, Mattermost gets them as code, and
the other two know no mentions in such texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffdl_batch.domain.network_address import parse_url

_MOST = 2000
"""Characters of a message; the services cut or refuse longer ones at different limits."""


def chat_post(chat: str, url: str, title: str, text: str) -> tuple[str, Mapping[str, Any]]:
    """Return the address and the JSON body of a message. `chat` is one of
    :data:`~ffdl_batch.domain.network_address.CHATS`."""
    text = text[:_MOST]
    if chat == "slack":  # docs.slack.dev/messaging/formatting-message-text: these three are all that need escaping
        return url, {"text": f"*{_slack(title)}*\n{_slack(text)}"}
    if chat == "mattermost":
        return url, {"text": f"{_code(title)}\n```\n{text.replace('`', chr(39))}\n```"}
    if chat == "teams":
        return url, _teams(title, text)
    return _ntfy(url, title, text)


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _teams(title: str, text: str) -> Mapping[str, Any]:
    """Return an Adaptive Card, as workflows of Teams accept it."""
    blocks = [
        {"type": "TextBlock", "text": title, "weight": "Bolder", "wrap": True},
        *({"type": "TextBlock", "text": line, "wrap": True, "spacing": "None"} for line in text.splitlines() if line),
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
        "body": blocks,
    }  # fmt: skip
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _ntfy(url: str, title: str, text: str) -> tuple[str, Mapping[str, Any]]:
    """Return the address of the server, and a message that names the topic, which is the last part of the path
    (docs.ntfy.sh/publish, "Publish as JSON")."""
    parts = parse_url(url)
    path = parts.path if parts is not None else ""
    server, _, topic = path.rstrip("/").rpartition("/")
    root = url.partition(path)[0] if path else url
    return f"{root}{server}/", {"topic": topic, "title": title, "message": text}

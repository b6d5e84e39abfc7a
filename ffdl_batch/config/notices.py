"""``[notices]`` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ffdl_batch.domain.incidents.incident import Origin
from ffdl_batch.domain.incidents.notice import NoticeSettings

_LISTS = ("mail", "webhooks", "origins")
_FILES = ("login_file", "ca_file", "webhook_key_file")
_KEYS = (*_LISTS, *_FILES, "smtp", "from")


def read_notices(table: Mapping[str, Any], origins: Mapping[str, str]) -> NoticeSettings:
    """Who is told, of a merged table; `origins` maps ``notices.<key>`` to the file that it is from. Raises ValueError
    with file and key."""
    checked: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{origins.get(f'notices.{key}', 'notices')}: notices.{key}"
        if key not in _KEYS:
            raise ValueError(f"{place} is no key; known are {', '.join(_KEYS)}")
        if key in _LISTS:
            checked[key] = _list(place, key, value)
        elif not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{place} must be a text, not {value!r}")
        elif key in _FILES and value and not Path(value).is_absolute():
            raise ValueError(f"{place} must be an absolute path, not {value!r}")
        else:
            checked["sender" if key == "from" else key] = value
    if checked.get("mail") and not checked.get("smtp"):
        place = origins.get("notices.mail", "notices")
        raise ValueError(f'{place}: notices.mail names addresses, and notices.smtp no relay; write smtp = "HOST:PORT"')
    return NoticeSettings(**checked)


def _list(place: str, key: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.isprintable() for one in value):
        raise ValueError(f"{place} must be a list of texts, not {value!r}")
    for one in value:
        if key == "origins" and one not in tuple(Origin):
            raise ValueError(f"{place}: {one!r} is no origin; known are {', '.join(Origin)}")
        if key == "mail" and one.count("@") != 1:
            raise ValueError(f"{place}: {one!r} is no mail address")
        if key == "webhooks" and not is_web_address(one):
            raise ValueError(f"{place}: {one!r} is no address of a web server; write https://HOST/PATH")
    return tuple(Origin(one) for one in value) if key == "origins" else tuple(value)


def is_web_address(text: str) -> bool:
    """Whether it names a web server."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False

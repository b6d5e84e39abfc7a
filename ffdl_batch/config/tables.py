"""Check the tables ``[rates]``, ``[notices]``, ``[retention]``, ``[nodes]``, ``[[fault_policies]]``, ``[image_policy]``
and ``[elastic]``."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ffdl_batch.config.image_policy import read_place, read_prefix
from ffdl_batch.config.settings import ElasticPool, ImagePolicy, Retention
from ffdl_batch.domain.incidents.incident import Origin
from ffdl_batch.domain.incidents.kinds import is_kind_name
from ffdl_batch.domain.incidents.site_settings import FaultPolicy, NodeRules, NoticeSettings
from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.domain.network_address import is_webhook
from ffdl_batch.domain.toml_text import shown_toml

_LONGEST_CURRENCY = 12
_LISTS = ("mail", "webhooks", "origins")
_FILES = ("login_file", "ca_file", "webhook_key_file")
_NOTICE_KEYS = (*_LISTS, *_FILES, "smtp", "from")
MOST_POLICIES = 64
LONGEST_MATCH = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_ADDRESS = re.compile(r"[^\s@,;<>]+@[^\s@,;<>]+")
_HEADER = re.compile(r"\s*\[\[\s*fault_policies\s*\]\]")
_FINGERPRINT = re.compile(r"[0-9A-F]{40}|[0-9A-F]{64}", re.ASCII)
_LIMITS = {"threshold": (0.1, 1e6), "hours": (0.1, 10_000.0), "percent": (0.0, 50.0)}


def read_rates(table: Mapping[str, Any], origins: Mapping[str, str]) -> Rates:
    """Return the prices of a merged table; `origins` maps ``rates.<key>`` to its file.

    Raises ValueError with file and key.
    """
    known = [part.name for part in fields(Rates)]
    for key, value in table.items():
        place = f"{origins.get(f'rates.{key}', 'rates')}: rates.{key}"
        if key not in known:
            raise ValueError(f"{place} is not a known key; the keys are {', '.join(known)}")
        if key == "currency":
            if not isinstance(value, str) or len(value) > _LONGEST_CURRENCY or not value.isprintable():
                raise ValueError(f"{place} must be a short text, as EUR, not {shown_toml(value)}")
        elif key in _BY_TYPE:
            example, check = _BY_TYPE[key]
            if not isinstance(value, dict):
                raise ValueError(f"{place} must be a table of GPU types, as {example}, not {shown_toml(value)}")
            for name, number in value.items():
                check(f"{place}.{name}", number)
            if len({name.lower() for name in value}) != len(value):
                raise ValueError(f"{place} names a GPU type twice; upper and lower case are the same type")
        else:
            _check_price(place, value)
    by_type = {key: {name: float(number) for name, number in table.get(key, {}).items()} for key in _BY_TYPE}
    return Rates(table.get("currency", ""), float(table.get("gpu_hour", 0)), float(table.get("cpu_hour", 0)), **by_type)


def _check_price(place: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{place} must be the price of an hour, 0 or above, not {shown_toml(value)}")


def _check_part(place: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{place} must be a part of a GPU, above 0 and at most 1, not {shown_toml(value)}")


_BY_TYPE: Mapping[str, tuple[str, Callable[[str, object], None]]] = {
    "gpu_types": ("{ a100 = 2.5 }", _check_price),
    "gpu_parts": ('{ "1g.24gb" = 0.25 }', _check_part),
}
"""Tables of GPU types: an example, and what checks a value."""


def read_notices(table: Mapping[str, Any], origins: Mapping[str, str]) -> NoticeSettings:
    """Return the addresses and relays of a merged table; `origins` maps ``notices.<key>`` to its file.

    Raises ValueError with file and key.
    """
    checked: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{origins.get(f'notices.{key}', 'notices')}: notices.{key}"
        if key not in _NOTICE_KEYS:
            raise ValueError(f"{place} is not a known key; the keys are {', '.join(_NOTICE_KEYS)}")
        if key in _LISTS:
            checked[key] = _notice_list(place, key, value)
        elif not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{place} must be a text, not {shown_toml(value)}")
        elif key in _FILES and value and not Path(value).is_absolute():
            raise ValueError(f"{place} must be an absolute path, not {shown_toml(value)}")
        else:
            checked["sender" if key == "from" else key] = value
    if checked.get("mail") and not checked.get("smtp"):
        place = origins.get("notices.mail", "notices")
        raise ValueError(f'{place}: notices.mail names addresses, and notices.smtp no relay; write smtp = "HOST:PORT"')
    return NoticeSettings(**checked)


def _notice_list(place: str, key: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.isprintable() for one in value):
        raise ValueError(f"{place} must be a list of texts, not {shown_toml(value)}")
    for one in value:
        if key == "origins" and one not in tuple(Origin):
            raise ValueError(f"{place}: {shown_toml(one)} is not a known origin; the origins are {', '.join(Origin)}")
        if key == "mail" and one.count("@") != 1:
            raise ValueError(f"{place}: {shown_toml(one)} is not a mail address")
        if key == "webhooks" and not is_webhook(one):
            raise ValueError(f"{place}: {shown_toml(one)} is not the address of a web server; write https://HOST/PATH")
    return tuple(Origin(one) for one in value) if key == "origins" else tuple(value)


def read_policies(tables: Sequence[Any], origin: str) -> tuple[FaultPolicy, ...]:
    """Return the policies of the file `origin` in their order. Raises ValueError with file and line."""
    lines = _lines(origin)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{origin}: fault_policies must be tables, [[fault_policies]]")
    if len(tables) > MOST_POLICIES:
        raise ValueError(f"{origin}: there are {len(tables)} fault_policies; {MOST_POLICIES} are possible")
    policies: list[FaultPolicy] = []
    for number, table in enumerate(tables):
        place = f"{origin}:{lines[number]}" if number < len(lines) else origin
        policies.append(_policy(table, f"{place}: fault_policies[{number + 1}]"))
    return tuple(policies)


def check_names(policies: tuple[FaultPolicy, ...], origin: str) -> tuple[FaultPolicy, ...]:
    """Return the policies of all files. Raises ValueError if two have the same name: messages name policies."""
    for number, policy in enumerate(policies):
        if policy.name in {one.name for one in policies[:number]}:
            raise ValueError(f"{origin}: there are two fault_policies named {policy.name}; give each its own name")
    return policies


def _policy(table: Mapping[str, Any], place: str) -> FaultPolicy:
    known = [part.name for part in fields(FaultPolicy)]
    for key in table:
        if key not in known:
            raise ValueError(f"{place}: {key} is not a known key; the keys are {', '.join(known)}")

    def need(condition: object, key: str, what: str) -> None:
        if not condition:
            found = f", not {shown_toml(table[key])}" if key in table else "; it is not set"
            raise ValueError(f"{place}: {key} must be {what}{found}")

    name, match, kind, notify = (table.get(key) for key in ("name", "match", "kind", "notify"))
    need(isinstance(name, str) and _NAME.fullmatch(name), "name", "a name of letters, digits and . _ -")
    need(isinstance(match, str) and 0 < len(match) <= LONGEST_MATCH, "match", "a regular expression")
    try:
        re.compile(str(match))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{place}: match is not a regular expression of Python's: {error}: {shown_toml(match)}"
        ) from error
    is_kind = kind is None or (isinstance(kind, str) and is_kind_name(kind))
    need(is_kind, "kind", "origin.word, as node.gpu (docs/faults.md)")
    for key in ("exclude_node", "stop_retrying"):
        need(isinstance(table.get(key, False), bool), key, "true or false")
    listed = [notify] if isinstance(notify, str) else notify
    addresses = listed if isinstance(listed, list) else []
    is_right = all(isinstance(one, str) and (_ADDRESS.fullmatch(one) or is_webhook(one)) for one in addresses)
    need(
        is_right and (listed is None or isinstance(listed, list)),
        "notify",
        "an address (mail, webhook) or a list of them",
    )
    if not (kind or table.get("exclude_node") or table.get("stop_retrying") or listed):
        raise ValueError(f"{place}: it does nothing; give kind, exclude_node, stop_retrying or notify")
    return FaultPolicy(
        str(name),
        str(match),
        kind or "",
        exclude_node=table.get("exclude_node", False),
        stop_retrying=table.get("stop_retrying", False),
        notify=tuple(listed or ()),
    )


def read_node_rules(table: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the values that the file `origin` sets of :class:`NodeRules`. Raises ValueError with file and key."""
    known = [part.name for part in fields(NodeRules)]
    for key, value in table.items():
        place = f"{origin}: nodes.{key}"
        if key not in known:
            raise ValueError(f"{place} is not a known key; the keys are {', '.join(known)}")
        if key == "exclude_unreliable":
            if not isinstance(value, bool):
                raise ValueError(f"{place} must be true or false, not {shown_toml(value)}")
            continue
        least, most = _LIMITS[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"{place} must be a number from {least:g} to {most:g}, not {shown_toml(value)}")
    return {key: value if key == "exclude_unreliable" else float(value) for key, value in table.items()}


def read_image_policy(table: object) -> ImagePolicy:
    """Return the policy. Raises ValueError with what follows the table's name."""
    known = [part.name for part in fields(ImagePolicy)]
    if not isinstance(table, dict):
        raise ValueError(f" must be a table, not {shown_toml(table)}")
    checked: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ValueError(f".{key} is not a known key; the keys are {', '.join(known)}")
        texts = [*value, *value.values()] if isinstance(value, dict) else value
        good = isinstance(value, dict if key == "mirrors" else list) and texts
        if not good or not all(isinstance(one, str) and one and one.isprintable() for one in texts):
            kind = "a table of strings" if key == "mirrors" else "a list of strings"
            raise ValueError(f".{key} must be {kind} that is not empty, not {shown_toml(value)}")
        try:
            if key == "mirrors":
                checked[key] = {read_place(one): read_place(value[one]) for one in value}
            else:
                checked[key] = tuple((_fingerprint if key == "signers" else read_prefix)(one) for one in value)
        except ValueError as error:
            raise ValueError(f".{key}: {error}") from None
    return ImagePolicy(**checked)


_MOST_DAYS = 36_500


def shorter_retention(earlier: Retention | None, table: object) -> Retention:
    """Return the shorter of the retention of earlier files and that of `table`, so that a user can shorten the site's
    and not lengthen it. Raises ValueError with what follows the table's name."""
    if not isinstance(table, dict) or set(table) - {"days"}:
        raise ValueError(f" must be a table with the key days, not {shown_toml(table)}")
    days = table.get("days", 0)
    if type(days) is not int or not 0 <= days <= _MOST_DAYS:
        raise ValueError(f".days must be a whole number from 0 (never) to {_MOST_DAYS}, not {shown_toml(days)}")
    given = [number for number in (earlier.days if earlier else 0, days) if number]
    return Retention(min(given, default=0))


_OBJECTIVES = ("completion", "throughput", "fair")
_POOL_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "gpus": ("a whole number from 1 to 100000", lambda value: type(value) is int and 1 <= value <= 100_000),
    "backend": ("text", lambda value: isinstance(value, str)),
    "partition": ("text", lambda value: isinstance(value, str)),
    "interval_s": ("a number from 1 to 86400", lambda value: _is_between(value, 1, 86400)),
    "min_between_s": ("a number from 0 to 86400", lambda value: _is_between(value, 0, 86400)),
    "objective": (f"one of {', '.join(_OBJECTIVES)}", lambda value: value in _OBJECTIVES),
}


def _is_between(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def read_elastic_pools(table: object) -> dict[str, ElasticPool]:
    """Return the pools of ``[elastic.pools.NAME]``. Raises ValueError with what follows the table's name."""
    if not isinstance(table, dict) or set(table) - {"pools"} or not isinstance(table.get("pools", {}), dict):
        raise ValueError(" may contain only [elastic.pools.NAME] tables")
    pools: dict[str, ElasticPool] = {}
    for name, pool in table.get("pools", {}).items():
        place = f".pools.{name}"
        keys = pool if isinstance(pool, dict) else {}
        for key, value in keys.items():
            if key not in _POOL_TYPES:
                near = difflib.get_close_matches(key, _POOL_TYPES, n=1)
                keys_or_near = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(_POOL_TYPES)}"
                raise ValueError(f"{place}.{key} is not a known key; {keys_or_near}")
            what, is_right = _POOL_TYPES[key]
            if not is_right(value):
                raise ValueError(f"{place}.{key} must be {what}, not {shown_toml(value)}")
        if not _NAME.fullmatch(name) or "gpus" not in keys:
            raise ValueError(
                f"{place} must be a table with the key gpus; its name may contain only letters, digits and . _ -"
            )
        pools[name] = ElasticPool(**pool)
    return pools


def _fingerprint(text: str) -> str:
    plain = text.replace(" ", "").upper()
    if not _FINGERPRINT.fullmatch(plain):
        raise ValueError(f"{text!r} is not a fingerprint; apptainer key list prints those of keys")
    return plain


def _lines(origin: str) -> list[int]:
    """Return the lines at which the tables begin; none if they are written in another form."""
    try:
        text = Path(origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]

"""``[[fault_policies]]`` and ``[nodes]`` of the configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ffdl_batch.config.notices import is_web_address
from ffdl_batch.domain.incidents.fault_policy import FaultPolicy, NodeRules
from ffdl_batch.domain.incidents.kinds import is_kind_name

MOST = 64
LONGEST_MATCH = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_ADDRESS = re.compile(r"[^\s@,;<>]+@[^\s@,;<>]+")
_HEADER = re.compile(r"\s*\[\[\s*fault_policies\s*\]\]")
_LIMITS = {"threshold": (0.1, 1e6), "hours": (0.1, 10_000.0), "percent": (0.0, 50.0)}


def read_policies(tables: Sequence[Any], origin: str) -> tuple[FaultPolicy, ...]:
    """The policies of a file, in its order; `origin` is the file. Raises ValueError with file and line."""
    lines = _lines(origin)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{origin}: fault_policies must be tables, [[fault_policies]]")
    if len(tables) > MOST:
        raise ValueError(f"{origin}: there are {len(tables)} fault_policies; {MOST} are possible")
    policies: list[FaultPolicy] = []
    for number, table in enumerate(tables):
        place = f"{origin}:{lines[number]}" if number < len(lines) else origin
        policies.append(_policy(table, f"{place}: fault_policies[{number + 1}]"))
    return tuple(policies)


def check_names(policies: tuple[FaultPolicy, ...], origin: str) -> tuple[FaultPolicy, ...]:
    """They, of several files in order. Raises ValueError where two have one name: messages name policies."""
    for number, policy in enumerate(policies):
        if policy.name in {one.name for one in policies[:number]}:
            raise ValueError(f"{origin}: there are two fault_policies named {policy.name}; give each its own name")
    return policies


def _policy(table: Mapping[str, Any], place: str) -> FaultPolicy:
    known = [part.name for part in fields(FaultPolicy)]
    for key in table:
        if key not in known:
            raise ValueError(f"{place}: {key} is no key; known are {', '.join(known)}")

    def need(condition: object, key: str, what: str) -> None:
        if not condition:
            raise ValueError(f"{place}: {key} must be {what}, not {table.get(key)!r}")

    name, match, kind, notify = (table.get(key) for key in ("name", "match", "kind", "notify"))
    need(isinstance(name, str) and _NAME.fullmatch(name), "name", "a name of letters, digits and . _ -")
    need(isinstance(match, str) and 0 < len(match) <= LONGEST_MATCH, "match", "a regular expression")
    try:
        re.compile(str(match))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{place}: match is no regular expression of Python's: {error}: {match!r}") from error
    is_kind = kind is None or (isinstance(kind, str) and is_kind_name(kind))
    need(is_kind, "kind", "origin.word, as node.gpu (docs/faults.md)")
    for key in ("exclude_node", "stop_retrying"):
        need(isinstance(table.get(key, False), bool), key, "true or false")
    listed = [notify] if isinstance(notify, str) else notify
    addresses = listed if isinstance(listed, list) else []
    is_right = all(isinstance(one, str) and (_ADDRESS.fullmatch(one) or is_web_address(one)) for one in addresses)
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
    """What a file says of :class:`NodeRules`. Raises ValueError with file and key."""
    known = [part.name for part in fields(NodeRules)]
    for key, value in table.items():
        place = f"{origin}: nodes.{key}"
        if key not in known:
            raise ValueError(f"{place} is no key; known are {', '.join(known)}")
        if key == "exclude_lemons":
            if not isinstance(value, bool):
                raise ValueError(f"{place} must be true or false, not {value!r}")
            continue
        least, most = _LIMITS[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"{place} must be a number from {least:g} to {most:g}, not {value!r}")
    return {key: value if key == "exclude_lemons" else float(value) for key, value in table.items()}


def _lines(origin: str) -> list[int]:
    """The lines at which the tables begin; none where they are written otherwise."""
    try:
        text = Path(origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]

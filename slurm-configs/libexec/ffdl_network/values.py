"""Checks the site's values for networks of jobs. Pure.

render.py checks them before it writes anything. The programs check them again when they start, because the files on a
node may have been changed there.
"""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Callable, Mapping, NamedTuple

HOOK_S = 17
"""Seconds that a hook may take in addition to NETWORK_TIMEOUT_S: 12 s for the request to slurmctld, 5 s until KILL."""
_SLOTS_MOST = 4096
_EGRESS_SLOTS_MOST = 254
_PLACE = re.compile(r"(/[A-Za-z0-9._+-]+)+")
_PATTERNS = re.compile(r"(/[A-Za-z0-9._+*?\[\]-]+)+(:(/[A-Za-z0-9._+*?\[\]-]+)+)*")
_MARK = re.compile(r"[A-Za-z0-9._:+/-]+")
_PORTS = re.compile(r"([1-9][0-9]{0,4})-([1-9][0-9]{0,4})")
MECHANISMS = ("vxlan", "wireguard")


class Wrong(NamedTuple):
    """The name of an invalid value, and a sentence with the reason and what the value must be."""

    name: str
    text: str


class Rule(NamedTuple):
    """A test of a value, and a description of valid values."""

    fits: Callable[[str], bool]
    words: str


def wrong_in(values: Mapping[str, str]) -> list[Wrong]:
    """Return all faults: first those of single values, then contradictions between valid values."""
    alone = wrong_alone(RULES, values)
    known = {one.name for one in alone}
    return alone + [
        Wrong(name, f"{name} is {values[name]!r}: {words}")
        for name, others, disagree, words in _RELATIONS
        if not known & {name, *others} and disagree(values)
    ]


def wrong_alone(rules: Mapping[str, Rule], values: Mapping[str, str]) -> list[Wrong]:
    """Return the values that do not match their rule."""
    return [
        Wrong(name, f"{name} is {values[name]!r}: it must be {rule.words}")
        for name, rule in rules.items()
        if not (_is_plain(values[name]) and rule.fits(values[name]))
    ]


def ports_of(text: str) -> tuple[int, int]:
    """Return the first and the last port of a range. Raises ValueError if it is invalid."""
    found = _PORTS.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found.group(1)), int(found.group(2))


def networks_of(text: str) -> list[ipaddress.IPv4Network]:
    """Return the networks of a list separated by commas. Raises ValueError if one is invalid."""
    return [ipaddress.IPv4Network(word.strip()) for word in text.split(",") if word.strip()]


def _is_plain(text: str) -> bool:
    """Return whether the text can be written between quotes in a program."""
    return text.isprintable() and not set(text) & {'"', "\\"}


def whole_number(least: int, most: int) -> Rule:
    """Return the rule of a whole number."""

    def fits(text: str) -> bool:
        return text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most

    return Rule(fits, f"a whole number from {least} to {most}")


def _is_prefix(text: str) -> bool:
    words = text.split(".")
    if len(words) != 2 or not all(whole_number(0, 255).fits(word) and str(int(word)) == word for word in words):
        return False
    network = ipaddress.IPv4Network(f"{text}.0.0/16")
    return 0 < int(words[0]) < 224 and not network.is_loopback and not network.is_link_local


def _is_privileged_range(text: str) -> bool:
    try:
        first, last = ports_of(text)
    except ValueError:
        return False
    return first < last < 1024


def _is_range(text: str) -> bool:
    try:
        first, last = ports_of(text)
    except ValueError:
        return False
    return first < last < 65536


def _is_list_of_networks(text: str) -> bool:
    try:
        networks_of(text)
    except ValueError:
        return False
    return True


def _is_seconds(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _is_in_range(values: Mapping[str, str]) -> bool:
    first, last = ports_of(values["NETWORK_SOURCE_PORTS"])
    return first <= int(values["NETWORK_UDP_PORT"]) <= last


def _has_too_few_ports(values: Mapping[str, str]) -> bool:
    first, last = ports_of(values["NETWORK_WIREGUARD_PORTS"])
    return last - first + 1 < int(values["NETWORK_SLOTS"])


def _has_too_many_slots(values: Mapping[str, str]) -> bool:
    return bool(networks_of(values["NETWORK_EGRESS_TO"])) and int(values["NETWORK_SLOTS"]) > _EGRESS_SLOTS_MOST


def _is_too_late(values: Mapping[str, str]) -> bool:
    return int(values["NETWORK_TIMEOUT_S"]) + HOOK_S >= int(values["PROLOG_EPILOG_TIMEOUT_S"])


def _is_longer_than_the_whole(values: Mapping[str, str]) -> bool:
    return float(values["NETWORK_COMMAND_TIMEOUT_S"]) > int(values["NETWORK_TIMEOUT_S"])


_ABSOLUTE = Rule(
    lambda text: _PLACE.fullmatch(text) is not None, "an absolute path of letters, digits and . _ + -, and not / itself"
)
_PREFIX = Rule(_is_prefix, "the first two numbers of addresses of hosts, e.g. 10.200")
RULES: Mapping[str, Rule] = {
    "SLURM_ETC": _ABSOLUTE,
    "FFDL_RUN": _ABSOLUTE,
    "FFDL_LIBEXEC": _ABSOLUTE,
    "JOB_MARK": Rule(
        lambda text: _MARK.fullmatch(text) is not None,
        "letters, digits and . _ : + / -, at least one; without it every job would ask for a network",
    ),
    "JOB_MARK_SOURCE": Rule(lambda text: text in ("env", "scontrol"), "env or scontrol"),
    "NETWORK_PREFIX": _PREFIX,
    "NETWORK_SLOTS": whole_number(1, _SLOTS_MOST),
    "NETWORK_UDP_PORT": Rule(whole_number(1, 1023).fits, "a port below 1024, e.g. 299"),
    "NETWORK_SOURCE_PORTS": Rule(_is_privileged_range, "two ports below 1024, the smaller one first, e.g. 600-999"),
    "NETWORK_MECHANISM": Rule(lambda text: text in MECHANISMS, " or ".join(MECHANISMS)),
    "NETWORK_WIREGUARD_PROGRAM": Rule(
        lambda text: not text or _PLACE.fullmatch(text) is not None, "the absolute path of a program, or nothing"
    ),
    "NETWORK_WIREGUARD_PORTS": Rule(_is_range, "two ports, the smaller one first, e.g. 10000-26383"),
    "NETWORK_SECRET": _ABSOLUTE,
    "NETWORK_GROUPS": Rule(
        lambda text: not text or all(word.strip() for word in text.split(",")),
        "names of groups with commas between, or nothing",
    ),
    "NETWORK_EGRESS_TO": Rule(
        _is_list_of_networks, "IPv4 networks without host bits, with commas between, e.g. 192.0.2.0/24, or nothing"
    ),
    "NETWORK_EGRESS_PREFIX": _PREFIX,
    "NETWORK_COMMAND_TIMEOUT_S": Rule(_is_seconds, "a number of seconds greater than 0, e.g. 10"),
    "NETWORK_TIMEOUT_S": whole_number(1, 65_000),
    "PROLOG_EPILOG_TIMEOUT_S": whole_number(1, 65_534),
    "APPTAINER_CONF": _ABSOLUTE,
    "APPTAINER_STARTERS": Rule(
        lambda text: _PATTERNS.fullmatch(text) is not None, "absolute paths or patterns, with colons between"
    ),
}
"""The rule of every value that hooks, programs and slurm.conf use."""
_RELATIONS: tuple[tuple[str, tuple[str, ...], Callable[[Mapping[str, str]], bool], str], ...] = (
    ("NETWORK_UDP_PORT", ("NETWORK_SOURCE_PORTS",), _is_in_range, "it must not be in NETWORK_SOURCE_PORTS"),
    (
        "NETWORK_WIREGUARD_PORTS",
        ("NETWORK_SLOTS",),
        _has_too_few_ports,
        "there must be at least as many as NETWORK_SLOTS",
    ),
    (
        "NETWORK_EGRESS_PREFIX",
        ("NETWORK_PREFIX",),
        lambda values: values["NETWORK_PREFIX"] == values["NETWORK_EGRESS_PREFIX"],
        "it must differ from NETWORK_PREFIX",
    ),
    (
        "NETWORK_SLOTS",
        ("NETWORK_EGRESS_TO",),
        _has_too_many_slots,
        f"level egress, which NETWORK_EGRESS_TO offers, has addresses for {_EGRESS_SLOTS_MOST} slots at most",
    ),
    (
        "NETWORK_COMMAND_TIMEOUT_S",
        ("NETWORK_TIMEOUT_S",),
        _is_longer_than_the_whole,
        "one program may not take longer than NETWORK_TIMEOUT_S, which is for all of them",
    ),
    (
        "NETWORK_TIMEOUT_S",
        ("PROLOG_EPILOG_TIMEOUT_S",),
        _is_too_late,
        f"with {HOOK_S} s more it must be less than PROLOG_EPILOG_TIMEOUT_S, at which Slurm gives the prolog up and "
        "drains the node; make it smaller, or that larger",
    ),
)

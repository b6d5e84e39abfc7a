"""Parses and formats sizes, durations and counts as people write them in manifests and on command lines.

The manifest, the command-line options and the site configuration use the same parsers.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from ffdl_batch.domain.number_text import counted

_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<unit>[A-Za-z]+)\s*", re.ASCII)
_UNITS = {
    "B": 1,
    **{f"{prefix}{suffix}": 1000 ** (i + 1) for i, prefix in enumerate("KMGTP") for suffix in ("", "B")},
    **{f"{prefix}{suffix}": 1024 ** (i + 1) for i, prefix in enumerate("KMGTP") for suffix in ("I", "IB")},
}
_SLURM_UNITS = {"": 1024**2, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_GRES_COUNT = re.compile(r"(\d{1,18})(?:([KMGTP])(I?B)?)?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?", re.ASCII)
_MINUTES = re.compile(r"\s*(\d{1,6}):(\d\d?)\s*", re.ASCII)
MINUTES_MEANT = ", as in Slurm"
"""Part of each message of :func:`doubt_about_minutes`."""
MAX_TEXT = 64
UNLIMITED_S = 60 * (2**32 - 1)
"""The time limit of a job that asks for none; in minutes, it is Slurm's INFINITE."""
WHOLE_NODE = 0
"""The bytes of a learner that asks for all memory of its node."""
_UNLIMITED = frozenset({"UNLIMITED", "INFINITE", "-1"})


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``8GB`` (10⁹), ``8 GiB`` (2³⁰), ``1.5Gi`` or ``500mb``; case does not matter.

    Raises ValueError for a number without unit, an unknown unit, zero or a negative size. ``8G`` and ``8Gb`` mean 8 GB:
    FfDL's users write all of them and mean decimal gigabytes.
    """
    match = _SIZE.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        if re.fullmatch(r"\s*[\d.]+\s*", text, re.ASCII) and len(text) <= MAX_TEXT:
            raise ValueError(f"{text.strip()!r} has no unit; write for example {text.strip()}GB or {text.strip()}MiB")
        raise ValueError(f"{text[:MAX_TEXT]!r} is not a size; write for example 8GB or 8GiB")
    unit = match["unit"].upper()
    if unit not in _UNITS:
        raise ValueError(f"{match['unit']!r} is not a unit of size; known are MB, MiB, GB, GiB, TB, TiB")
    size = int(Decimal(match["number"]) * _UNITS[unit])
    if size <= 0:
        raise ValueError(f"{text.strip()!r} is not more than nothing")
    return size


def parse_slurm_memory(text: str) -> int:
    """Return the bytes of an sbatch memory value: a whole number with K, M, G or T (powers of 1024), MiB by default."""
    match = re.fullmatch(r"(\d+)([KMGTkmgt]?)[Bb]?", text.strip(), re.ASCII) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(f"{text[:MAX_TEXT]!r} is not a memory size as sbatch takes it; write for example 4000 or 8G")
    return int(match[1]) * _SLURM_UNITS[match[2].upper()]


def format_size(size: int) -> str:
    """Return a size in the unit that is shortest without loss down to a hundredth, for people."""
    for unit, factor in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2)):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    for unit, factor in (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if size >= factor:
            return f"{size / factor:.2f}".rstrip("0").rstrip(".") + unit
    return f"{size}B"


def parse_gres_count(text: str) -> int | None:
    """Return a count of a generic resource, as ``2`` or ``200G`` (suffix_mult in slurm_protocol_defs.c: K and KiB are
    1024, KB is 1000). None for another text, and for a count that Slurm cannot hold."""
    match = _GRES_COUNT.fullmatch(text)
    if match is None:
        return None
    power = " KMGTP".index((match[2] or " ").upper())
    count: int = int(match[1]) * (1000 if (match[3] or "").upper() == "B" else 1024) ** power
    return count if count < 2**63 else None


def format_gres_count(count: int) -> str:
    """Return the shortest text that :func:`parse_gres_count` reads as `count`."""
    for power, unit in ((5, "P"), (4, "T"), (3, "G")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def format_memory(size: int) -> str:
    """Return the memory of a learner, for people."""
    return "all of the node" if size == WHOLE_NODE else format_size(size)


def parse_requested_time(text: str) -> int:
    """Return the seconds of a time limit that a job asks for: UNLIMITED_S for UNLIMITED, INFINITE and -1, as sbatch
    reads them, else as :func:`parse_time_limit`."""
    return UNLIMITED_S if text.strip().upper() in _UNLIMITED else parse_time_limit(text)


def parse_time_limit(text: str) -> int:
    """Return the seconds of a time limit, in Slurm's forms or as ``2h30m``.

    Slurm's forms (sbatch(1), ``--time``): minutes, minutes:seconds, hours:minutes:seconds, days-hours,
    days-hours:minutes, days-hours:minutes:seconds. Raises ValueError for anything else and for zero.
    """
    seconds = _slurm_seconds(text.strip()) if len(text) <= MAX_TEXT else None
    if seconds is None:
        match = _DURATION.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
        if match is None or not any(match.groups()):
            raise ValueError(
                f"{text[:MAX_TEXT]!r} is not a time limit; write minutes, [days-]hours:minutes:seconds, or 2h30m"
            )
        parts = [int(group or 0) for group in match.groups()]
        seconds = sum(n * unit for n, unit in zip(parts, (604800, 86400, 3600, 60, 1), strict=True))
    if seconds <= 0:
        raise ValueError("a time limit must be more than zero")
    return seconds


def doubt_about_minutes(text: str) -> tuple[str, str] | None:
    """Return a message and a cure for a time limit of minutes and seconds, such as ``24:00``, which users often mean as
    hours and minutes; None for others."""
    match = _MINUTES.fullmatch(text)
    if match is None:
        return None
    minutes, seconds = int(match[1]), int(match[2])
    more = f" and {counted(seconds, 'second')}" if seconds else ""
    message = f"{text.strip()!r} means {counted(minutes, 'minute')}{more}{MINUTES_MEANT}"
    return message, f"write {match[1]}:{match[2]}:00 if you mean hours"


def _slurm_seconds(text: str) -> int | None:
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(f.isascii() and f.isdigit() for f in fields) or (dash and not (days.isascii() and days.isdigit())):
        return None
    if len(fields) > 3:
        return None
    numbers = [int(f) for f in fields]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(numbers) == 3:
        return numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    minutes, seconds = [*numbers, 0][:2]
    return minutes * 60 + seconds


def format_time_limit(seconds: int) -> str:
    """Return Slurm's ``[days-]hours:minutes:seconds``, or UNLIMITED."""
    if seconds >= UNLIMITED_S:
        return "UNLIMITED"
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_decimal(text: str) -> Decimal:
    """Return a finite decimal number, underscores allowed as in YAML 1.1. Raises ValueError otherwise."""
    try:
        number = Decimal(text.strip().replace("_", ""))
    except InvalidOperation:
        raise ValueError(f"{text[:MAX_TEXT]!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{text[:MAX_TEXT]!r} is not a finite number")
    return number

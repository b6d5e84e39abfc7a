"""Convert keys of stores to names of files and back."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import re

from ffdl_batch.staging.faults import Skip

LONGEST_NAME_BYTES = 255
LONGEST_KEY_BYTES = 1024
"""Limit of S3, Swift and GCS."""
INDEX = ".ffdl-index.json"
"""Name of the object that has links, modes and empty directories of a tree
(:mod:`ffdl_batch.staging.transfer.tree_metadata`)."""
PART_NAME = re.compile(r"\.ffdl-[0-9a-f]{24}\.part")
"""Names of incomplete files."""


def part_name(*words: str) -> str:
    """Return the name of an incomplete file, the same for the same words."""
    return f".ffdl-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:24]}.part"


_ESCAPED = re.compile(r"\[([*?[])\]")


def below(prefix: str) -> str:
    """Return the prefix with which keys below it begin."""
    return prefix if not prefix or prefix.endswith("/") else f"{prefix}/"


def parts_of(name: str, *, is_key: bool = True) -> tuple[str, ...]:
    """Return directories and file for a key without its prefix. Raises Skip with the reason.

    No result leads out of the directory, and no two names become the same file. A name that is no key may have bytes
    that are not UTF-8.
    """
    if "\0" in name:
        raise Skip("it has a NUL, which no file's name can have")
    parts = tuple(name.split("/"))
    if "" in parts:
        raise Skip("it has an empty part (//, or / at its beginning), which no path can have")
    if "." in parts or ".." in parts:
        raise Skip("it has . or .. as a part, which would lead elsewhere")
    try:
        longest = max(len(part.encode("utf-8", "strict" if is_key else "surrogateescape")) for part in parts)
    except UnicodeEncodeError:
        raise Skip("it is not UTF-8") from None
    if longest > LONGEST_NAME_BYTES:
        raise Skip(f"a part of it is longer than {LONGEST_NAME_BYTES} bytes, which no file's name can be")
    if PART_NAME.fullmatch(parts[-1]):
        raise Skip("half-made files have such names")
    if parts == (INDEX,):
        raise Skip("the index of links and modes has this name")
    return parts


def key_of(prefix: str, name: str) -> str:
    """Return the key under which a file is stored. Raises Skip with the reason."""
    key = below(prefix) + name
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Skip("its name is not UTF-8, which every key is") from None
    if size > LONGEST_KEY_BYTES:
        raise Skip(f"its key would be longer than {LONGEST_KEY_BYTES} bytes")
    return key


def plain_names(only: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names that the patterns stand for; None if a pattern can match several names."""
    names = tuple(_ESCAPED.sub(r"\1", pattern) for pattern in only)
    return names if only and tuple(glob.escape(name) for name in names) == only else None


def is_wanted(name: str, only: tuple[str, ...]) -> bool:
    """Return whether a pattern matches the name. Without patterns, all names match."""
    return not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)

"""From bytes to text that may be parsed: size, encoding and characters.

Everything that a YAML reader would stumble over with a bare exception is turned into a sentence here.
"""

from __future__ import annotations

import re

from ffdl_batch.manifest.document.tree import Mark, Unreadable

MAX_BYTES = 1024 * 1024
"""Manifests are a few kilobytes; one of a megabyte is a mistake (a model or a data file given as the manifest)."""

# YAML 1.1 section 5.1 names the printable characters; all others can only come in by accident or by malice.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAGIC = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "a gzip archive", b"\x7fELF": "a program"}
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


def read_text(raw: str | bytes) -> str:
    """Return the manifest's text without a byte-order mark. Raises :class:`Unreadable`."""
    if len(raw) > MAX_BYTES:
        raise _too_big()
    for magic, kind in _MAGIC.items():
        if isinstance(raw, bytes) and raw.startswith(magic):
            raise Unreadable(f"this is {kind}, not a manifest", "name the manifest first, then the model")
    text = _decode(raw) if isinstance(raw, bytes) else raw
    if not isinstance(raw, bytes) and len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _too_big()
    text = text.removeprefix("\ufeff")
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        raise _unprintable(text, bad.start())
    return text


def _too_big() -> Unreadable:
    return Unreadable(
        "the manifest is larger than 1 MiB and was not read",
        "is this the manifest? the model's files go into a directory or zip of their own",
    )


def _decode(raw: bytes) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Unreadable("the manifest is encoded as UTF-16", "save it as UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        mark = mark_of(raw[: error.start].decode("utf-8"), error.start)
        raise Unreadable(f"byte \\x{raw[error.start]:02x} is not UTF-8", "save the manifest as UTF-8", mark) from None


def mark_of(text: str, index: int) -> Mark:
    """Line and column of `index`, or of the end where `text` is shorter; the same line breaks as YAML's."""
    line, start = 0, 0
    for found in _LINE_BREAK.finditer(text, 0, min(index, len(text))):
        line, start = line + 1, found.end()
    return Mark(line + 1, min(index, len(text)) - start + 1, index, index)


def _unprintable(text: str, index: int) -> Unreadable:
    code = ord(text[index])
    if code == 0 and text.count("\0") * 3 > len(text):
        return Unreadable(
            "the manifest contains a zero after every character: it looks like UTF-16", "save it as UTF-8"
        )
    name = "a NUL character" if code == 0 else f"the non-printable character U+{code:04X}"
    return Unreadable(
        f"{name} stands here", "delete it, or write it as an escape in double quotes", mark_of(text, index)
    )

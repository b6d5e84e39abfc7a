"""Reads the variables and files that a manifest refers to, as the user who submits it.

Another person may have written the manifest. It may refer only to files in its own directory and to those that the
caller allows. A manifest that belongs to another user may have no references unless the caller allows them. An allowed
reference that cannot be read is skipped. The daemon reports it if the job needs it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath

from ffdl_batch.attempt.reader import read_whole
from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.client.submissions.manifest_source import ManifestText
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.secret_references import ENV, FILE, MAX_BYTES, REFERENCE
from ffdl_batch.host.users import user_name

_COMMENT = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|(?P<comment>(?:^|(?<=\s))#.*)""")
"""Matches a quoted text, in which # is an ordinary character, or a comment of YAML."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_CONTINUED = re.compile(r"\\\n[ \t]*")
"""Matches an escaped line break. In a quoted text, YAML ignores it with the blanks that follow."""
_KEY = re.compile(r"""([\w./-]+)["']?\s*:\s*["']?$""")


@dataclass(frozen=True, slots=True)
class AllowedReferences:
    """The references that a manifest may use besides files in its own directory."""

    files: tuple[str, ...] = ()
    """Files, or directories whose files are all allowed (``--allow-file``)."""
    foreign: bool = False
    """Whether a manifest that belongs to another user may have references (``--allow-references``)."""


OWN_DIRECTORY = AllowedReferences()
"""Allows only files in the manifest's own directory."""


@dataclass(frozen=True, slots=True)
class _Reference:
    kind: str
    name: str
    line: int | None = None
    column: int | None = None
    key: str = ""

    def refused(self, manifest: str, message: str, cure: str) -> Finding:
        text = f"'${{{self.kind}:{self.name}}}' is not allowed: {message}"
        return Finding(Severity.ERROR, text, cure, manifest, self.line, self.column, self.key or None, "C103")


def find_references(
    manifest: ManifestText, environ: Mapping[str, str], allowed: AllowedReferences = OWN_DIRECTORY
) -> dict[str, str]:
    """Return the values of the manifest's ``${env:NAME}`` and ``${file:PATH}``, keyed by ``env:NAME`` and
    ``file:PATH``.

    Raises InputUnusable with exit code 77, and reads nothing, if any reference is not allowed.
    """
    if refused := refused_references(manifest, allowed):
        message = f"manifest {manifest.name} has references that are not allowed"
        raise InputUnusable(message, code="C103", exit_code=ExitCode.NOT_ALLOWED, findings=refused)
    found: dict[str, str] = {}
    roots = _roots(manifest, allowed)
    for kind, name in dict.fromkeys((one.kind, one.name) for one in _references_in(manifest.text)):
        value = None
        if kind == ENV:
            value = environ.get(name)
        elif kind == FILE:
            value = _text_of(_real_path(manifest, name), roots)
        if value is not None and _is_text(value):
            found[f"{kind}:{name}"] = value
    return found


def refused_references(manifest: ManifestText, allowed: AllowedReferences = OWN_DIRECTORY) -> tuple[Finding, ...]:
    """Return an error for each reference that `allowed` does not cover. Opens no file.

    Without `allowed.foreign`, no reference is covered if the manifest belongs to another user. This includes root: a
    file of root's may come from a package or an archive, so its owner does not show who wrote it.
    """
    owner, caller = manifest.origin.owner, os.geteuid()
    if owner is not None and owner != caller and not allowed.foreign:
        message = f"the manifest belongs to '{user_name(owner)}', and you are '{user_name(caller)}'"
        cure = "if you trust the manifest, add --allow-references"
        references = _references_in(manifest.text, in_comments=True)
        return tuple(one.refused(manifest.name, message, cure) for one in references)
    roots = _roots(manifest, allowed)
    return tuple(
        one.refused(
            manifest.name,
            f"the file '{path}' is not in the manifest's directory '{manifest.origin.real_dir}'",
            f"if you trust the manifest with this file, add --allow-file {shlex.quote(path)}",
        )
        for one in _references_in(manifest.text)
        if one.kind == FILE and _root_of(path := _real_path(manifest, one.name), roots) is None
    )


def _references_in(text: str, *, in_comments: bool = False) -> Iterator[_Reference]:
    """Yield every reference of the text, also those written with the escapes of a quoted text.

    This does not parse YAML. It finds more references than YAML does, because a text may be written to look like a
    comment.
    """
    lines = []
    for whole in text.splitlines():
        comments = () if in_comments else (found.start() for found in _COMMENT.finditer(whole) if found["comment"])
        lines.append(_ESCAPE.sub(_unescaped, whole[: next(iter(comments), len(whole))]))
    seen = set()
    for number, line in enumerate(lines, 1):
        for found in REFERENCE.finditer(line):
            seen.add(found.groups())
            key = _KEY.search(line[: found.start()])
            yield _Reference(found[1], found[2], number, found.start() + 1, key[1] if key else "")
    for kind, name in REFERENCE.findall(_CONTINUED.sub("", "\n".join(lines))):
        if (kind, name) not in seen:
            yield _Reference(kind, name)


def _unescaped(found: re.Match[str]) -> str:
    code = int(found[found.lastindex or 0], 16)
    return chr(code) if code <= sys.maxunicode else found[0]


def _real_path(manifest: ManifestText, name: str) -> str:
    return os.path.realpath(os.path.join(manifest.origin.base_dir, name))  # noqa: PTH118  (as realpath)


def _roots(manifest: ManifestText, allowed: AllowedReferences) -> tuple[str, ...]:
    return (manifest.origin.real_dir, *map(os.path.realpath, allowed.files))


def _root_of(path: str, roots: tuple[str, ...]) -> str | None:
    return next((root for root in roots if PurePath(path).is_relative_to(root)), None)


def _text_of(path: str, roots: tuple[str, ...]) -> str | None:
    """Return the text of the regular file at a real path; None if it cannot be read.

    A real path has no links. So a link on the way to the file was put there since, and is not followed.
    """
    root = _root_of(path, roots)
    below = root if root and root != path else os.path.dirname(path)  # noqa: PTH120
    with suppress(OSError, ValueError):
        return read_whole(path, MAX_BYTES + 2, below=below, any_owner=True).decode("utf-8")  # 2: a line end
    return None


def _is_text(value: str) -> bool:
    """Whether it can be sent: a variable may hold any bytes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

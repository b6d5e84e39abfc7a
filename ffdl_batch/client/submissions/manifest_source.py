"""Read a manifest and what it refers to: its text, name and owner, and variables and files of the user who submits it.

Another person may have written the manifest. It may refer only to files in its own directory and to those that the
caller allows. A manifest that belongs to another user may have no references unless the caller allows them. An allowed
reference that cannot be read has a reason instead, which the daemon reports if the job needs it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from ffdl_batch.attempt.reader import DamagedFile, read_head
from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.client.submissions.submit_options import OWN_DIRECTORY, AllowedReferences
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.secret_references import ENV, FILE, MAX_BYTES, REFERENCE, UNREAD
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import user_name

MAX_MANIFEST_BYTES = 1 << 20
"""A manifest is a page; a megabyte is a mistake (a data file, an archive), and is not sent."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a manifest comes from."""

    base_dir: str
    """The absolute directory to which relative paths refer."""
    real_dir: str
    """The real path, without links, of the manifest's directory."""
    owner: int | None = None
    """The user id of the file's owner; None for standard input that is not a file, or if the caller passed the text
    itself."""


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A manifest as it is sent. `name` is used in messages."""

    text: str
    name: str
    origin: Origin


def read_source(source: str | Path) -> tuple[bytes, Origin]:
    """Read the file `source` (``-``: standard input). Read at most one byte more than a manifest may have.

    Raises OSError.
    """
    if str(source) == "-":
        return sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1), replace(_here(), owner=_owner_of_input())
    path = Path(source)
    with path.open("rb") as file:
        data, found = file.read(MAX_MANIFEST_BYTES + 1), os.fstat(file.fileno())
    base = path.absolute().parent
    if not stat.S_ISREG(found.st_mode) or not found.st_nlink:  # a pipe, or the shell's file behind /dev/stdin
        return data, Origin(str(base), os.path.realpath(base), found.st_uid)
    real = Path(os.path.realpath(path))
    if not os.path.samestat(found, real.stat()):
        raise OSError(errno.ESTALE, "the file was replaced while it was read; try again")
    return data, Origin(str(base), str(real.parent), found.st_uid)


def read_manifest(source: str | Path | Mapping[str, object]) -> ManifestText:
    """Read the manifest in a file (``-``: standard input), or `source` itself if it is a text of several lines or a
    mapping.

    Raises :class:`InputUnusable`: exit code 66 if it cannot be read, 78 if it is too large or not text.
    """
    if isinstance(source, Mapping):
        return ManifestText(_as_yaml(source), "", _here())
    if isinstance(source, str) and "\n" in source:
        return ManifestText(source, "manifest", _here())
    name = "standard input" if str(source) == "-" else str(source)
    try:
        data, origin = read_source(source)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputUnusable(f"manifest {name}: {reason}", code="C101") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise _unusable(name, f"has more than {MAX_MANIFEST_BYTES >> 20} MiB, the maximum", _SMALLER)
    try:
        return ManifestText(data.decode("utf-8-sig"), name, origin)
    except UnicodeDecodeError as error:
        raise _unusable(name, f"is not UTF-8 text: byte {error.start} is \\x{data[error.start]:02x}") from error


_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Matches characters that JSON may contain unescaped, and that YAML may not contain or reads differently."""


def _as_yaml(manifest: Mapping[str, object]) -> str:
    """Return a mapping as JSON that is also YAML. Raises InputUnusable for a value that no manifest can have."""
    try:
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        cure = "use mappings, lists, strings, numbers, booleans and None"
        raise InputUnusable(
            f"the manifest cannot be written as text: {error}",
            cure=cure,
            code="C101",
            exit_code=ExitCode.BAD_MANIFEST,
        ) from error
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> object:
    """Return a value that :mod:`json` does not know as one that it knows. Raises TypeError."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a manifest cannot contain a value of type {type(value).__name__}")


def _owner_of_input() -> int | None:
    """Return the owner of the file that the shell opened as standard input; None if it is not a file."""
    try:
        found = os.fstat(sys.stdin.fileno())
    except OSError:  # a program put another object in its place
        return None
    return found.st_uid if stat.S_ISREG(found.st_mode) else None


def _here() -> Origin:
    return Origin(str(Path.cwd()), os.path.realpath("."))


_SMALLER = "is this the manifest? the model's files go into a directory or zip of their own"


def _unusable(name: str, what: str, cure: str = "") -> InputUnusable:
    return InputUnusable(f"manifest {name} {what}", cure=cure, code="C101", exit_code=ExitCode.BAD_MANIFEST)


_COMMENT = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|(?P<comment>(?:^|(?<=\s))#.*)""")
"""Matches a quoted text, in which # is an ordinary character, or a comment of YAML."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_CONTINUED = re.compile(r"\\\n[ \t]*")
"""Matches an escaped line break. In a quoted text, YAML ignores it with the blanks that follow."""
_KEY = re.compile(r"""([\w./-]+)["']?\s*:\s*["']?$""")


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
    ``file:PATH``. If one cannot be read, ``unread:file:PATH`` has the reason and the cure.

    Raises InputUnusable with exit code 77, and reads nothing, if any reference is not allowed.
    """
    if refused := refused_references(manifest, allowed):
        message = f"manifest {manifest.name} has references that are not allowed"
        raise InputUnusable(message, code="C103", exit_code=ExitCode.NOT_ALLOWED, findings=refused)
    found: dict[str, str] = {}
    roots = _roots(manifest, allowed)
    for kind, name in dict.fromkeys((one.kind, one.name) for one in _references_in(manifest.text)):
        try:
            if kind == FILE:
                found[f"{FILE}:{name}"] = _text_of(_real_path(manifest, name), roots)
            elif kind == ENV and name in environ:
                found[f"{ENV}:{name}"] = _sendable(environ[name])
        except (OSError, ValueError) as error:
            found[f"{UNREAD}:{kind}:{name}"] = _why_unread(name, error)
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


def _text_of(path: str, roots: tuple[str, ...]) -> str:
    """Return the text of the regular file at a real path. Raises OSError, ValueError.

    A real path has no links. So a link on the way to the file was put there since, and is not followed.
    """
    root = _root_of(path, roots)
    below = root if root and root != path else os.path.dirname(path)  # noqa: PTH120
    raw = read_head(path, MAX_BYTES + 3, below=below, any_owner=True)
    if len(raw) > MAX_BYTES + 2:  # 2: a line end
        raise ValueError(f"it has more than {MAX_BYTES} bytes; keep it in a file that the training reads")
    return raw.decode("utf-8")


def _sendable(value: str) -> str:
    """Return the value of a variable, which may have any bytes. Raises ValueError if it is not text."""
    value.encode("utf-8")
    return value


def _why_unread(name: str, error: OSError | ValueError) -> str:
    """Return why a value cannot be read, and the cure, without quoting the value."""
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8; encode it, with base64 for one"
    if isinstance(error, FileNotFoundError) and name.startswith("~"):
        return "it does not exist, since ~ is not expanded; give an absolute path"
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "it does not exist; give an absolute path, or one from the manifest's directory"
    if isinstance(error, DamagedFile) and error.why.endswith("' is a regular file"):
        return f"{error.why}, not a directory; correct the path"
    if isinstance(error, DamagedFile):
        return f"{error.why}; name a regular file"
    return f"{error.strerror}; make it readable" if isinstance(error, OSError) else str(error)

"""Names, references and limits of secrets, and which secrets a job needs. Never holds their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.domain.job.spec import JobSpec

REFERENCE = re.compile(r"\$\{(secret|env|file):([^{}\s]+)\}")
"""A reference in a manifest to a value that is stored elsewhere; it must be the whole value."""
SECRET, ENV, FILE = "secret", "env", "file"
UNREAD = "unread"
"""A submission has ``unread:file:PATH`` → the reason and the cure, if the value cannot be read."""
MOVED = "moved to a secret at submission"
"""In warnings about credentials in a manifest."""
MAX_BYTES = 64 * 1024
"""Of one value, in UTF-8; one variable of a process can have about twice as much."""
CUSTOM = "custom"
"""The framework whose version is the image."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_WITHOUT = frozenset({"host_mount", "directory", "mount_volume"})
"""Types of stores that are directories: credentials in their manifests are ignored."""


@dataclass(frozen=True, slots=True)
class Use:
    """One place of a job that refers to a value."""

    path: str
    """Field of the manifest."""
    kind: str
    """Kind of the reference: SECRET, ENV or FILE."""
    name: str


def why_no_name(name: str) -> str:
    """Return why `name` cannot be the name of a secret; "" = it can."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name[:80]!r} cannot be a secret's name: use letters, digits, '.', '_' and '-', at most 64, and begin with "
        "a letter or digit"
    )


def why_no_value(value: str) -> str:
    """Return why `value` cannot be the value of a secret, without quoting it; "" = it can."""
    if not value:
        return "the value is empty"
    if "\0" in value:
        return "the value contains a NUL character, which no variable can carry: encode it, with base64 for one"
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        return "the value is not text in UTF-8: encode it, with base64 for one"
    if size > MAX_BYTES:
        return f"the value has more than {MAX_BYTES} bytes: keep it in a file that the training reads"
    return ""


def without_line_end(text: str) -> str:
    """Return `text` without the line end that editors and `echo` append: it is no part of a secret."""
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def reference(name: str) -> str:
    """Return the reference to the secret of this name."""
    return f"${{{SECRET}:{name}}}"


def read_reference(value: str) -> tuple[str, str] | None:
    """Return kind and name if `value` is a reference, else None."""
    found = REFERENCE.fullmatch(value)
    return (found[1], found[2]) if found else None


def uses_of(spec: JobSpec) -> Iterator[Use]:
    """Yield every reference of the job that has an effect."""
    for i, store in enumerate(spec.data_stores):
        if store.effective_type not in _WITHOUT:
            for key, value in store.connection.items():
                if found := read_reference(value):
                    yield Use(f"data_stores[{i}].connection.{key}", *found)
    for key, value in _of_image(spec).items():
        if found := read_reference(value):
            yield Use(f"framework.image_location.{key}", *found)
    for variable, value in spec.batch.secrets.items():
        if found := read_reference(value):
            yield Use(f"batch.secrets.{variable}", *found)


def _of_image(spec: JobSpec) -> dict[str, str]:
    """Return the credentials for the registry of the image: of `image_location`, or of a custom image."""
    location = spec.framework.image_location
    if location is None or not location.access_token or not (location.registry or spec.framework.name == CUSTOM):
        return {}
    given = {"user_name": location.user_name, "access_token": location.access_token}
    return {key: value for key, value in given.items() if value}


def image_credentials(spec: JobSpec) -> dict[str, str]:
    """Return fields of :class:`ffdl_batch.domain.data.image_task.ImageTask` → the secrets that hold them; empty = the
    registry is asked anonymously."""
    fields = {"user_name": "user_name", "access_token": "password"}
    found = ((fields[key], read_reference(value)) for key, value in _of_image(spec).items())
    return {field: used[1] for field, used in found if used is not None and used[0] == SECRET}


def needed_secrets(spec: JobSpec) -> tuple[str, ...]:
    """Return the names of the secrets that an attempt needs, each once."""
    return tuple(dict.fromkeys(use.name for use in uses_of(spec) if use.kind == SECRET))


def secret_variables(spec: JobSpec) -> dict[str, str]:
    """Return variables of the learners → the secret that each of them holds."""
    found = ((variable, read_reference(value)) for variable, value in spec.batch.secrets.items())
    return {variable: used[1] for variable, used in found if used is not None and used[0] == SECRET}


def to_text(values: Mapping[str, str]) -> str:
    """Return the content of a job's or an attempt's file of secrets."""
    return json.dumps(dict(values), sort_keys=True) + "\n"


def from_text(text: str) -> dict[str, str]:
    """Return the values in the text of :func:`to_text`. Raises ValueError, whose message quotes nothing of the text."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise ValueError("it does not map names to texts")
    return body

"""Secrets: how manifests name them, what may be one, and which of them a job needs. Values are nowhere here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ffdl_batch.domain.job.spec import JobSpec, StoreType

REFERENCE = re.compile(r"\$\{(secret|env|file):([^{}\s]+)\}")
"""How a manifest names a value that is kept elsewhere; a reference is the whole value."""
SECRET, ENV, FILE = "secret", "env", "file"
MOVED = "moved to a secret at submission"
"""In warnings of credentials that stand in a manifest: what they say is over with the submission."""
MAX_BYTES = 64 * 1024
"""Of one value, in UTF-8: a process can be given about twice as much in one variable."""
CUSTOM = "custom"
"""The framework whose version is the image."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_WITHOUT = frozenset({StoreType.HOST_MOUNT, StoreType.DIRECTORY, StoreType.MOUNT_VOLUME})
"""Stores that are directories: what their manifests say of credentials is read by nobody."""


@dataclass(frozen=True, slots=True)
class Use:
    """One place of a job that refers to a value: the manifest's field, what kind of reference, and to what."""

    path: str
    kind: str
    name: str


def why_no_name(name: str) -> str:
    """Why no secret can be called so; "" where one can."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name[:80]!r} cannot be a secret's name: use letters, digits, '.', '_' and '-', at most 64, and begin with "
        "a letter or digit"
    )


def why_no_value(value: str) -> str:
    """Why this cannot be a secret's value, in words that do not hold it; "" where it can."""
    if not value:
        return "the value is empty"
    if "\0" in value:
        return "the value holds a NUL character, which no variable can carry: encode it, with base64 for one"
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        return "the value is not text in UTF-8: encode it, with base64 for one"
    if size > MAX_BYTES:
        return f"the value has more than {MAX_BYTES} bytes: keep it in a file that the training reads"
    return ""


def without_line_end(text: str) -> str:
    """`text` as it was meant: the line end that editors and `echo` put behind it is no part of a secret."""
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def reference(name: str) -> str:
    """The reference to the secret of this name."""
    return f"${{{SECRET}:{name}}}"


def read_reference(value: str) -> tuple[str, str] | None:
    """Kind and name of a value that is a reference; None where it is none."""
    found = REFERENCE.fullmatch(value)
    return (found[1], found[2]) if found else None


def uses_of(spec: JobSpec) -> Iterator[Use]:
    """Every reference of the job that something is done with."""
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
    """What the manifest has for the registry of the image: that of `image_location`, or the one of a custom image."""
    location = spec.framework.image_location
    if location is None or not location.access_token or not (location.registry or spec.framework.name == CUSTOM):
        return {}
    given = {"user_name": location.user_name, "access_token": location.access_token}
    return {key: value for key, value in given.items() if value}


def image_credentials(spec: JobSpec) -> dict[str, str]:
    """Fields of :class:`ffdl_batch.domain.data.image_task.ImageTask` → the secrets that hold them; none = asked as
    anybody."""
    fields = {"user_name": "user_name", "access_token": "password"}
    found = ((fields[key], read_reference(value)) for key, value in _of_image(spec).items())
    return {field: told[1] for field, told in found if told is not None and told[0] == SECRET}


def needed_secrets(spec: JobSpec) -> tuple[str, ...]:
    """The names of the secrets that an attempt needs, each once."""
    return tuple(dict.fromkeys(use.name for use in uses_of(spec) if use.kind == SECRET))


def secret_variables(spec: JobSpec) -> dict[str, str]:
    """Variables of the learners → the secret that each of them holds."""
    found = ((variable, read_reference(value)) for variable, value in spec.batch.secrets.items())
    return {variable: told[1] for variable, told in found if told is not None and told[0] == SECRET}


def to_text(values: Mapping[str, str]) -> str:
    """The file of a job's or an attempt's secrets."""
    return json.dumps(dict(values), sort_keys=True) + "\n"


def from_text(text: str) -> dict[str, str]:
    """What :func:`to_text` has written. Raises ValueError, which says nothing of what is in it."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise ValueError("it does not map names to texts")
    return body

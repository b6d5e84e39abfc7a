"""What a manifest may refer to where it is submitted: variables and files, read before it is sent.

Nothing of the manifest is checked here. What cannot be read is left out, and the daemon says what it misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ffdl_batch.client.manifest import ManifestText
from ffdl_batch.domain.secrets import ENV, FILE, MAX_BYTES, REFERENCE


def find_references(manifest: ManifestText, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of its ``${env:NAME}`` and ``${file:PATH}``, by ``env:NAME`` and ``file:PATH``."""
    found: dict[str, str] = {}
    for kind, name in dict.fromkeys(REFERENCE.findall(manifest.text)):
        value = None
        if kind == ENV:
            value = environ.get(name)
        elif kind == FILE:
            value = _text_of(Path(manifest.base_dir, name))
        if value is not None and _is_text(value):
            found[f"{kind}:{name}"] = value
    return found


def _is_text(value: str) -> bool:
    """Whether it can be sent: a variable may hold any bytes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _text_of(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 3)  # and a line end
        return data.decode("utf-8") if len(data) < MAX_BYTES + 3 else None
    except (OSError, ValueError):
        return None

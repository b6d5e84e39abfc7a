"""Create and decode credentials of munge(7), which prove a user's identity on another host of the cluster.

The programs `munge` and `unmunge` are used: there is no maintained binding, and they run only once in several hours.
"""

from __future__ import annotations

import re
import subprocess
from typing import List, NamedTuple, Optional

LONGEST = 8192
"""Maximum length of a credential that is decoded."""
TTL_S = 60
_TIMEOUT_S = 20
_FORM = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:", re.ASCII)
_LINE = re.compile(r"^([A-Z_]+): +.*?\(?(\d+)\)?\s*$", re.MULTILINE)


class MungeFailed(Exception):
    """A credential cannot be created, or is not valid. The text is the reason."""


class Decoded(NamedTuple):
    """A valid credential. munged accepts each once, and only within its time to live."""

    uid: int
    """The user who created it."""
    reader: Optional[int]
    """The only uid that can decode it; None for all users."""
    ttl_s: int
    """How long it is valid after its creation, in seconds."""
    payload: bytes


def encode(payload: bytes, *, reader: int) -> str:
    """Return a credential of this user that only the uid `reader` can decode. Raises MungeFailed."""
    return _run(["munge", f"--restrict-uid={reader}", f"--ttl={TTL_S}"], payload).decode("ascii").strip()


def decode(credential: str) -> Decoded:
    """Return the content of a credential. Raises MungeFailed, also if it has expired or was decoded before."""
    if len(credential) > LONGEST or not _FORM.fullmatch(credential):
        raise MungeFailed("it is not a munge credential")
    head, separator, payload = _run(["unmunge"], credential.encode("ascii")).partition(b"\n\n")
    found = {name: int(number) for name, number in _LINE.findall(head.decode("utf-8", "replace"))}
    if not separator or found.get("STATUS") != 0 or not {"UID", "TTL"} <= set(found):
        raise MungeFailed("the output of unmunge cannot be read")
    return Decoded(found["UID"], found.get("UID_RESTRICTION"), found["TTL"], payload)


def _run(argv: List[str], data: bytes) -> bytes:
    try:
        ended = subprocess.run(argv, input=data, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MungeFailed(f"{argv[0]} cannot be run: {error}") from error
    if ended.returncode:
        lines = ended.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {ended.returncode}"]
        raise MungeFailed(lines[-1].partition("Error: ")[2] or lines[-1])
    return ended.stdout

"""Credentials that old FfDL manifests hold in clear: found, moved out of the spec, blotted out of the text.

The values never go into messages.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection
from functools import lru_cache

from ffdl_batch.domain.job.environment_variables import NAME
from ffdl_batch.domain.job.secret_references import ENV, FILE, REFERENCE, SECRET, why_no_name
from ffdl_batch.domain.redaction import SECRET_WORDS
from ffdl_batch.manifest.document.tree import Mapping, Node, Scalar, Sequence, walk

_MEANT = re.compile(r"\$\{(secret|env|file):[^{}]{0,60}\}?")
_OTHER = re.compile(r"\$\{(?!(?:secret|env|file):)([A-Za-z]+):([A-Za-z0-9./~][^{}\s]*)\}")
"""A reference to no kind that exists. Shells also know ``${NAME:-word}``."""
_KINDS = (SECRET, ENV, FILE)
READ_IN = "batch.secrets, credentials of data stores, and user_name and access_token of image_location"
"""Where references are read."""
_NO_KIND = f"this is not a kind of reference; the kinds are {', '.join(_KINDS)}"
_EXACT = frozenset({"user", "key", "pass", "pwd", "auth", "login"})
"""Words that mean a credential in a connection and anything at all elsewhere."""
_PARTS = (*SECRET_WORDS, "username", "userid", "serviceaccount")
_NEAR = ("user_name", "password", "access_token", "api_key", "secret_access_key", "access_key_id")
_USERINFO = re.compile(r"://[^/\s@:]*:[^/\s@]*@")
MAX_SECRETS = 200
"""A manifest with more of them is no manifest; blotting them all out would take minutes."""
MIN_ECHO = 4
"""A shorter secret is blotted out only where it stands: elsewhere its letters are chance."""
_PLAIN_WORDS = re.compile(r"([a-z]+|[A-Z][a-z]*|[A-Z]+)([ _.-]([a-z]+|[A-Z][a-z]*|[A-Z]+))*")
"""Old manifests hold `user_name: test` beside `id: test-datastore`: such a value stands elsewhere by chance."""
_MAX_PLAIN = 20
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n\r\x85\u2028\u2029]*", re.MULTILINE)


@lru_cache(maxsize=1024)
def is_credential_key(key: str) -> bool:
    """Whether a key names a credential, misspelt ones included."""
    if len(key) > 60:
        return False
    folded = _fold(key)
    if folded in _EXACT or any(part in folded for part in _PARTS):
        return True
    return bool(difflib.get_close_matches(key.lower(), _NEAR, n=1, cutoff=0.8))


def _fold(key: str) -> str:
    return re.sub(r"[^a-z]", "", key.lower())


def is_secret(key: str, value: str) -> bool:
    """Whether `value` must not be kept: a credential in clear, or an address with one in it."""
    if not value or REFERENCE.fullmatch(value):
        return False
    return is_credential_key(key) or bool(_USERINFO.search(value))


def secret_name(*parts: str) -> str:
    """A name for a secret: letters, digits, dots, dashes and underscores."""
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-") or "unnamed" for part in parts)


def why_no_reference(value: str) -> str:
    """Why a value that is meant as a reference is none, or names what cannot be; "" for every other value."""
    found = REFERENCE.fullmatch(value)
    if found is None and (other := _OTHER.fullmatch(value)):
        near = difflib.get_close_matches(other[1].lower(), _KINDS, n=1)
        return f"{other[1]!r} is not a kind of reference; did you mean {near[0]}?" if near else _NO_KIND
    if found is None:
        return "a reference is the whole value, without blanks" if _MEANT.search(value) else ""
    if found[1] == SECRET:
        return why_no_name(found[2])
    if found[1] == ENV and not NAME.fullmatch(found[2]):
        return f"{found[2][:60]!r} cannot be the name of a variable"
    return ""


def find_written(text: str) -> tuple[str, str]:
    """Return the first thing in `text` that is written like a reference, and its kind; two empty texts = nothing is."""
    found = _MEANT.search(text)
    return (found[0], found[1]) if found else ("", "")


def keep_apart(name: str, value: str, secrets: dict[str, str], taken: Collection[str]) -> str:
    """Keep `value` in `secrets` under `name`, or one like it that means nothing else; the name. `taken` are the names
    that the manifest itself refers to."""
    while name in taken or secrets.get(name, value) != value:
        name += "-2"
    secrets[name] = value
    return name


def named_in(text: str) -> frozenset[str]:
    """The secrets that a text refers to by name."""
    return frozenset(name for kind, name in REFERENCE.findall(text) if kind == SECRET)


def redact(text: str, root: Node) -> str:
    """`text` without the values of credentials; "" where there are more than MAX_SECRETS of them.

    What is left is still YAML, with every other value as it was.
    """
    secrets = {id(node): node for node in _secret_scalars(root)}
    values = {piece for node in secrets.values() for piece in (node.text, *node.text.splitlines())}
    if len(secrets) > MAX_SECRETS or len(values) > MAX_SECRETS:
        return ""
    echoes = sorted((v for v in values if len(v.strip()) >= MIN_ECHO), key=lambda v: (-len(v), v))
    telling = [value for value in echoes if not _is_plain(value)]
    parts: list[str] = []
    end = 0
    for node in _scalars_in_order(root):
        mark = node.origin.mark
        parts.append(_clean_gap(text[end : mark.index], telling, echoes))
        raw = text[mark.index : mark.end]
        hidden = "***" if id(node) in secrets else _without(telling, node.text)
        parts.append(raw if hidden == node.text and _without(telling, raw) == raw else _quoted(raw, node, hidden))
        end = mark.end
    return "".join((*parts, _clean_gap(text[end:], telling, echoes)))


def _is_plain(value: str) -> bool:
    return len(value) < _MAX_PLAIN and _PLAIN_WORDS.fullmatch(value) is not None


def _without(values: list[str], text: str) -> str:
    for value in values:
        text = text.replace(value, "***")
    return text


def _clean_gap(gap: str, telling: list[str], echoes: list[str]) -> str:
    """What stands between two scalars; comments also without the plain words that are secrets."""
    gap = _without(telling, gap)
    words = "|".join(rf"(?<!\w){re.escape(value)}(?!\w)" for value in echoes)
    return _COMMENT.sub(lambda found: re.sub(words, "***", found[0]), gap) if words else gap


def _scalars_in_order(root: Node) -> list[Scalar]:
    """Every scalar of the text once, keys included, by its place."""
    found: dict[int, Scalar] = {}
    for node, _ in walk(root):
        scalars = [node] if isinstance(node, Scalar) else []
        if isinstance(node, Mapping):
            scalars = [entry.key for entry in (*node.entries.values(), *node.shadowed)]
        found |= {s.origin.mark.index: s for s in scalars if s.origin.mark.end > s.origin.mark.index}
    return [found[index] for index in sorted(found)]


def _secret_scalars(root: Node) -> list[Scalar]:
    """Every scalar that a credential's key holds, anywhere, also where a later key of that name hides it."""
    found: list[Scalar] = []
    for node, place in walk(root):
        if not isinstance(node, Mapping):
            continue
        literal = place == ("batch", "secrets")
        for entry in (*node.entries.values(), *node.shadowed):
            if _fold(entry.key.text) in _EXACT and "connection" not in place:
                continue
            for scalar in _scalars(entry.value):
                if is_secret("password" if literal else entry.key.text, scalar.text):
                    found.append(scalar)
    return found


def _scalars(node: Node) -> list[Scalar]:
    """A value itself, or what a list under a credential's key holds."""
    if isinstance(node, Sequence):
        return [item for item in node.items if isinstance(item, Scalar) and not item.is_null]
    return [node] if isinstance(node, Scalar) and not node.is_null else []


def _quoted(raw: str, node: Scalar, value: str) -> str:
    """`value` in the place of `raw`, in double quotes; an anchor stays, and blanks that `raw` ends with."""
    tail = raw[len(raw.rstrip()) :]
    anchor = f"&{node.anchor} " if node.anchor else ""
    return f"{anchor}{json.dumps(value, ensure_ascii=False)}{tail}"

"""Credentials that old FfDL manifests hold in clear: found, moved out of the spec, blotted out of the text.

The values never go into messages.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache

from ffdl_batch.manifest.tree import Mapping, Node, Scalar, Sequence, walk

REFERENCE = re.compile(r"\$\{(secret|env|file):[^{}\s]+\}")
"""How a manifest names a secret that is kept elsewhere."""
_EXACT = frozenset({"user", "key", "pass", "pwd", "auth", "login"})
"""Words that mean a credential in a connection and anything at all elsewhere."""
_PARTS = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "credential", "privatekey",
    "username", "userid", "sharedkey", "accountkey",
)  # fmt: skip
_NEAR = ("user_name", "password", "access_token", "api_key", "secret_access_key", "access_key_id")
_USERINFO = re.compile(r"://[^/\s@:]*:[^/\s@]*@")
MAX_SECRETS = 200
"""A manifest with more of them is no manifest; blotting them all out would take minutes."""
MIN_ECHO = 4
"""A shorter secret is blotted out only where it stands: elsewhere its letters are chance."""


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


def redact(text: str, root: Node) -> str:
    """`text` without the values of credentials; "" where there are more than MAX_SECRETS of them."""
    secrets = {id(node): node for node in _secret_scalars(root)}
    if len(secrets) > MAX_SECRETS:
        return ""
    for node in sorted(secrets.values(), key=lambda n: -n.origin.mark.index):
        text = _blot(text, node)
    return _without({piece for node in secrets.values() for piece in (node.text, *node.text.splitlines())}, text)


def _without(values: set[str], text: str) -> str:
    """`text` without `values` wherever they stand, also in comments; the longest first."""
    if len(values) > MAX_SECRETS:
        return ""
    for value in sorted(values, key=len, reverse=True):
        if len(value.strip()) >= MIN_ECHO:
            text = text.replace(value, "***")
    return text


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


def _blot(text: str, node: Scalar) -> str:
    mark = node.origin.mark
    if node.origin.option:
        return text
    old = text[mark.index : mark.end]
    tail = old[len(old.rstrip()) :]
    anchor = f"&{node.anchor} " if node.anchor else ""
    return f'{text[: mark.index]}{anchor}"***"{tail}{text[mark.end :]}'

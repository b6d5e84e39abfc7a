"""Removes secrets from text that users send to others: known values, and text that looks like a secret.

No pattern recognises every secret: a user who sends the text has to look through it. Learners write the text, so every
pattern takes linear time.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus

MARK = "***"
SHORTEST = 4
"""Minimum length of a value that is removed. Shorter ones occur in every text."""
SECRET_WORDS = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "credential", "privatekey",
    "sharedkey", "accountkey",
)  # fmt: skip
"""Parts of the names of secrets, in lower case and without separators."""
_SECRET_NAME = re.compile(r"(?i)(?:(?:^|[_.-])(?:pass|pwd|auth)|signature|\w[_-]key)$")
_OTHER_NAME = re.compile(
    r"(?i)tokeniz|(?:file|dir|path)$|^(?:pwd|oldpwd)$|(?:primary|foreign|public|cache|sort)[_-]key$"
)
"""Tokenizers, places of secrets, the working directory of a shell, and keys that are no secrets."""
_KEY = re.compile(
    r"""\bname\\?["']?\s*:\s*\\?["']?(?P<listed>[A-Za-z_][\w.-]*+)\\?["']?,?\s*\\?["']?value\\?["']?\s*:\s*"""
    r"""|(?<![\w-])(?P<option>--[A-Za-z][\w-]*+)(?:\\?["']\s{0,4},)?\s{1,4}"""
    r"""|(?<![\w.-])(?<!\$\{)(?P<key>[\w.-]++)\\?["']?\s{0,4}(?:[:=]>?)\s{0,4}"""
)
"""What precedes a value: ``{"name": NAME, "value":``, ``--NAME`` (also in a list of words), ``NAME:`` and ``NAME=``."""
_VALUE = re.compile(
    r"""\$\{[^{}\s]*\}|\"\"\"[\s\S]*?\"\"\"|\'\'\'[\s\S]*?\'\'\'|[|>][+-]?\n(?:[ \t]+[^\n]*\n?)+"""
    r"""|\\"(?:(?!\\").)*\\"|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\\?["']?[^\s,;&"'(){}\[\]<>]+"""
)
"""A value as shells, TOML, JSON (also in a string) and YAML write it."""
_OPENING, _NEXT = re.compile(r"\[\s*"), re.compile(r"\s*,\s*")
"""What precedes the first and each other value of a list."""
_HARMLESS = re.compile(
    r"""["']?(?:[-+\d.,eE%/]*|true|false|null|none|\*+|\$\{(?:secret|env|file):[^{}]*\}?)["']?""", re.IGNORECASE
)
"""Numbers, words that are no secrets, and references to secrets."""
_PATTERNS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----|\Z)",
            MARK,
        ),
        (r"(?s)\A.*-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----", MARK),  # its beginning was cut off
        (r"""(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\\?["']?\s*[:=]\s*\\?["']?)[^\n"'\\]+""", rf"\1\2{MARK}"),
        (r"(?i)\b(bearer|basic|negotiate)(\s+)[\w+/.~=-]{6,}", rf"\1\2{MARK}"),
        (r"""://[^\s/:@"'<>]*+:(?:[^\s:@"'<>]*+(?::(?!//)[^\s:@"'<>]*+)*+@)+""", f"://{MARK}@"),
        (r"""://[^\s/:@"'<>]{16,}+@""", f"://{MARK}@"),
        (r"([?&]sig=)[\w%+/=-]{20,}", rf"\1{MARK}"),  # shared access signature of Azure
        (r"MUNGE:[\w+/=]{8,}:?", MARK),
        (r"ffdl_[0-9a-z]{12}_[\w-]{20,}", MARK),
        (r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]*", MARK),  # JSON Web Token (RFC 7519)
        (r"\b(?:(?:gh[opsur]|github_pat|hf|npm)_\w{20,}|(?:glpat|sk|xox[a-z])-[\w-]{16,})", MARK),
        (r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}\b|AIza[\w-]{35})", MARK),
        (r"(hooks\.slack\.com/services/)[\w/]+", rf"\1{MARK}"),
    )
)


def names_secret(name: str) -> bool:
    """Return whether a variable, key or option of this name probably has a secret."""
    if _OTHER_NAME.search(name):
        return False
    folded = re.sub(r"[^a-z]", "", name.lower())
    return any(word in folded for word in SECRET_WORDS) or _SECRET_NAME.search(name) is not None


def secret_values(variables: Mapping[str, str]) -> set[str]:
    """Return the values of the variables whose names look like those of secrets."""
    return {value for name, value in variables.items() if names_secret(name) and not _HARMLESS.fullmatch(value)}


def without_values(text: str, values: Iterable[str]) -> str:
    """Return the text without these values."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST:
            text = text.replace(value, MARK)
    return text


class Redactor:
    """Removes the values of known secrets, also encoded, and text that looks like a secret."""

    def __init__(self, values: Iterable[str]) -> None:
        known = {value for value in values if len(value) >= SHORTEST}
        lines = {line.strip() for value in known for line in value.splitlines()}
        self._forms = {form for value in known for form in _forms(value)}
        self._forms |= {form for line in lines - known for form in (line, json.dumps(line)[1:-1])}
        self._encoded = [
            re.compile(rf"{re.escape(core)}[\w+/-]?={{0,2}}") for value in known for core in _base64(value)
        ]

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        text = without_values(text, self._forms)
        for core in self._encoded:
            text = core.sub(MARK, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return _without_named(text)


def _forms(value: str) -> set[str]:
    """Return the value as programs, JSON, shells and URLs write it, and in hexadecimal."""
    raw = value.encode("utf-8", "surrogateescape")
    url = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
    shell = {shlex.quote(f"{value} ")[1:-2], value.replace("'", "'\\''")}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    escaped.add(value.replace("\\", "\\\\").replace("'", "\\'"))
    escaped |= {json.dumps(text)[1:-1] for text in tuple(escaped)}  # JSON in a log that JSON quotes
    return {value, raw.hex(), raw.hex().upper(), *url, *shell, *escaped}


def _base64(value: str) -> set[str]:
    """Return the characters that are in the base64 of every text with the value, at each of the three offsets."""
    raw, found = value.encode("utf-8", "surrogateescape"), set[str]()
    for offset in range(3):
        whole = base64.b64encode(bytes(offset) + raw).decode("ascii")
        core = whole[(8 * offset + 5) // 6 : 8 * (offset + len(raw)) // 6]
        found |= {core, core.replace("+", "-").replace("/", "_")}
    return found


def _without_named(text: str) -> str:
    """Return the text without the values that follow the name of a secret."""
    parts, end = list[str](), 0
    for found in _KEY.finditer(text):
        if found.start() < end or not names_secret(found[found.lastgroup or 0]):
            continue
        opening = _OPENING.match(text, found.end())
        start = opening or found
        while value := _VALUE.match(text, start.end()):
            parts += [text[end : value.start()], _hidden(value[0])]
            end = value.end()
            following = _NEXT.match(text, end) if opening else None
            if following is None:
                break
            start = following
    return "".join((*parts, text[end:]))


def _hidden(value: str) -> str:
    """Return the mark between the value's quotes, or a value that is no secret."""
    if _HARMLESS.fullmatch(value):
        return value
    quote_mark = re.match(r"""\\?["']?""", value)
    border = quote_mark[0] if quote_mark else ""
    return f"{border}{MARK}{border}"

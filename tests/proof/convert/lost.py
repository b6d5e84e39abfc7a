"""What of a script is lost without a line of the report.

It shares nothing with the converter: it reads line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ffdl_batch.domain.conversion import Conversion, Fate, Judged, Origin
from tests.proof.convert.running import LETTERS

_PASSED = frozenset({
    "account", "array", "begin", "constraint", "dependency", "exclude", "licenses", "nodelist", "partition", "qos",
    "reservation", "comment", "mail-user", "signal", "nice", "deadline", "requeue", "hold",
})  # fmt: skip
"""Options that a written script has again as they were, unless the report says otherwise."""
_BODY: Mapping[str, re.Pattern[str]] = {
    "another host": re.compile(r"(?<![\w./\"'-])(ssh|pdsh|clush|rsh)\s+\S"),
    "a list of hosts": re.compile(r"(?<![\w.-])horovodrun\s.*\s-H\b"),
    "a container": re.compile(
        r"(?<![\w./-])(shifter\s+-|podman-hpc\s+run|docker\s+run|enroot\s+start|singularity\s+(exec|run)|apptainer\s+(exec|run))"
    ),
    "a home directory": re.compile(r"(?<![\w~=])~/|\$\{?HOME\}?/"),
    "a directory of the host": re.compile(
        r"(?<![\w.$}/~:-])/(home|scratch|data|project|projects|work|gpfs|lustre|mnt|nfs|global)/\w"
    ),
    "an argument": re.compile(r"(?<![\\\w'])\$(?:\{?[1-9]\b|[@*](?![\w\"]))"),
    "another job": re.compile(r"(?:^|[;&|(]\s*)sbatch\s"),
}  # fmt: skip
_KEYS = {"a container": "framework.version"}
"""Keys of the manifest that a line becomes without a loss."""
_COMMENT = re.compile(r"(^|\s)#.*")
_DATA = re.compile(r"^\s*(echo|printf)\b|<<|awk|sed|perl|\bfunction\b|\(\)\s*\{|^\s*(alias|trap)\b")
"""Lines whose words may be text: nothing is asserted of them."""


def silently_lost(
    text: str, conversion: Conversion, before: Mapping[str, str], after: Mapping[str, str], *, arguments: bool
) -> list[str]:
    """Return a line for each loss that the report does not name. `before` and `after` are the options of the script and
    of the one that was written from the manifest."""
    found = [*_directives(text, conversion.judged), *_options(conversion.judged, before, after)]
    if not any("#!/bin/" in line and "csh" in line for line in text.splitlines()[:1]):
        found += _body(text, conversion.judged, arguments=arguments)
    return found


def _directives(text: str, judged: Sequence[Judged]) -> Iterator[str]:
    reported = {one.line for one in judged}
    for number, line in _outside_documents(text):
        words = line[7:].strip() if line.startswith("#SBATCH") and line[7:8].isspace() else ""
        if words and not words.startswith(("#", "\\#")) and number not in reported:
            yield f"line {number}: {line.strip()} is in no line of the report"


def _options(judged: Sequence[Judged], before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    reported = [one for one in judged if one.fate is not Fate.MAPPED or one.reason]
    for name in sorted(_PASSED & before.keys()):
        flag = name in ("requeue", "hold") and name in after and before[name] in ("", "1", "yes")
        if flag or after.get(name) == before[name] or not before[name].strip():
            continue
        if not any(name in one.text.lower().replace("_", "-") for one in reported) and not _letter_reported(
            name, reported
        ):
            yield f"--{name}={before[name]} became {after.get(name)}"


def _letter_reported(name: str, reported: Sequence[Judged]) -> bool:
    letters = [letter for letter, long in LETTERS.items() if long == name]
    return any(one.text.startswith(f"-{letter}") for letter in letters for one in reported)


def _body(text: str, judged: Sequence[Judged], *, arguments: bool) -> Iterator[str]:
    body = sorted((one for one in judged if one.origin is Origin.BODY), key=lambda one: one.line)
    for number, line in _outside_documents(text):
        ran = _COMMENT.sub("", line)
        if number == 1 or not ran.strip() or _DATA.search(ran):
            continue
        for what, pattern in _BODY.items():
            if not pattern.search(re.sub(r"'[^']*'", "''", ran)) or (
                what == "an argument" and (arguments or _in_function(text, number))
            ):
                continue
            if not _reported(number, body, _KEYS.get(what, "no key")):
                yield f"line {number}: {what} is in no line of the report: {ran.strip()[:60]}"


def _outside_documents(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, without those of here-documents."""
    inside = ""
    for number, line in enumerate(text.split("\n"), 1):
        if inside:
            inside = "" if line.strip() == inside else inside
            continue
        document = re.search(r"<<-?\s*['\"\\]?(\w+)", line)
        inside = document[1] if document and "<<<" not in line else ""
        yield number, line


def _reported(number: int, body: Sequence[Judged], key: str) -> bool:
    """Return whether the report has a remark on the line, or names the key that the line became."""
    near = max((one.line for one in body if one.line <= number), default=0)
    return any(one.line == near and (one.fate is not Fate.MAPPED or key in one.to) for one in body)


def _in_function(text: str, number: int) -> bool:
    lines = text.split("\n")[: number - 1]
    begun = sum(bool(re.search(r"^\s*(function\s+\w+|[\w-]+\s*\(\s*\))", line)) for line in lines)
    return begun > sum(line.startswith("}") or line.strip() == "}" for line in lines)

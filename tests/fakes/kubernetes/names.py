"""What names and labels may look like, and how Kubernetes says so."""

from __future__ import annotations

import re

from tests.fakes.kubernetes.refusals import Cause, wrong

DNS_LABEL = (
    re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
)
DNS_NAME = (
    re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
)
LABEL_TEXT = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_LABEL_WHY = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_WHY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def qualified_name(key: str) -> str:
    """What is wrong with the key of a label or an annotation; empty where nothing is."""
    prefix, slash, name = key.rpartition("/")
    if slash and not DNS_NAME[0].match(prefix):
        return f"prefix part {DNS_NAME[1]}"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    if not name or not LABEL_TEXT.match(name):
        return _NAME_WHY
    return ""


def check_labels(labels: dict[str, str], field: str) -> list[Cause]:
    """Keys and values of labels."""
    causes = []
    for key, value in labels.items():
        problem = qualified_name(key)
        if problem:
            causes.append(wrong(field, key, problem))
        if len(value) > 63:
            causes.append(wrong(field, value, "must be no more than 63 bytes"))
        elif not LABEL_TEXT.match(value):
            causes.append(wrong(field, value, _LABEL_WHY))
    return causes

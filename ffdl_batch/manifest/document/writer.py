"""A manifest's text from plain values, for manifests that a program makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml


class _Dumper(yaml.SafeDumper):
    """Keeps the order of keys, and indents the items of lists as the documentation does."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def write_manifest(values: Mapping[str, object], remarks: Sequence[str] = ()) -> str:
    """The YAML text of `values`, which are plain mappings, lists, texts, numbers and flags, below `remarks`."""
    head = "".join(f"# {line}\n" if line else "#\n" for remark in remarks for line in remark.splitlines() or [""])
    return head + yaml.dump(
        _plain(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118, default_flow_style=False
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value

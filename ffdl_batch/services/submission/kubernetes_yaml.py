"""Objects of a cluster's API as text: a YAML document each, which `kubectl apply` reads as the values that are sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*", re.ASCII)
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Texts that readers of YAML 1.1 take for something else, in any case of their letters."""
_WIDTH = 10**9
"""Lines are not folded: a folded command cannot be searched for."""


def yaml_documents(objects: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Each object as the text of a document, without its ``---``."""
    import yaml

    dumper = _dumper()
    return tuple(
        yaml.dump(one, Dumper=dumper, sort_keys=False, width=_WIDTH, allow_unicode=True, default_flow_style=False)
        for one in objects
    )


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Block texts for lines; quoted is all that a reader of any YAML could take for no text; no anchors."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of any value
            """One value in two places is written twice."""
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        style = "|" if "\n" in value else None if is_plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper

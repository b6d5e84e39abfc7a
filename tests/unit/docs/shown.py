"""Commands that the documentation shows: every line of its console and bash blocks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SITE_ONLY = ROOT / "docs" / "site-only-commands.toml"
_BLOCK = re.compile(r"^```(console|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """One command and where it stands."""

    text: str
    file: str


def documents() -> list[Path]:
    """README, CONTRIBUTING and all pages of the site."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(pages)]


def shown_commands() -> list[Shown]:
    """All of them, in the order of the files."""
    return [Shown(text, str(path.relative_to(ROOT))) for path in documents() for text in commands_in(path.read_text())]


def commands_in(markdown: str) -> Iterator[str]:
    """In a console block the lines that begin with a prompt, in a bash block every line that is no comment."""
    for language, body in _BLOCK.findall(markdown):
        lines = body.replace("\\\n", " ").splitlines()
        if language == "console":
            yield from (line[2:].strip() for line in lines if line.startswith("$ "))
        else:
            yield from (line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def site_only() -> dict[str, str]:
    """Command to reason."""
    table = tomllib.loads(SITE_ONLY.read_text())["commands"]
    return {str(command): str(reason) for command, reason in table.items()}

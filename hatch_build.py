"""Adds the man pages to the wheel if sphinx has built them (`make docs`)."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface[Any]):
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Name the files and their places."""
        for page in Path(self.root, "docs/_build/man").glob("*.1"):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

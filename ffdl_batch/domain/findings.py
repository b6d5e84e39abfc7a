"""Findings about an input: where, what is wrong or worth knowing, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from ffdl_batch.host.fast_dataclass import dataclass


class Severity(StrEnum):
    """Errors refuse the input; warnings and notes are stored with the job."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One message about one place in one input."""

    severity: Severity
    message: str
    cure: str | None = None
    file: str | None = None
    line: int | None = None
    """From 1; None = the input has no lines (an option, an archive). So is `column`."""
    column: int | None = None
    path: str | None = None
    """The place inside the document, as ``data_stores[0].type``."""
    code: str = "C101"

    def __str__(self) -> str:
        return self._line(f"{self.severity}: ")

    def without_severity(self) -> str:
        """Return the finding for places that have a label for its severity."""
        return self._line("")

    def _line(self, severity: str) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}:{self.column or 1}"
        where = f"{place}: " if place else ""
        subject = f"{self.path}: " if self.path else ""
        cure = f" ({self.cure})" if self.cure else ""
        return f"{where}{severity}{subject}{self.message}{cure}"


class InputRefused(Exception):
    """An input with at least one error; carries every finding."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(f) for f in self.findings if f.severity is Severity.ERROR))

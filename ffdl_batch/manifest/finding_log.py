"""Findings as they are collected: each knows its place, whether in the manifest or in an option."""

from __future__ import annotations

from dataclasses import field

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.manifest.document.tree import Mapping, Mark, Node, Origin, Place, Unreadable, locate, path_text

MAX_FINDINGS = 100
"""Maximum number; a hostile manifest could cause tens of thousands."""


@dataclass(slots=True)
class FindingLog:
    """Findings about one manifest named `file`. Set `root` as soon as there is a tree. Without a name, findings have no
    lines, because the user wrote no text of the manifest."""

    file: str
    root: Node = field(default_factory=lambda: Mapping({}, Origin(Mark(1, 1))))
    _findings: list[Finding] = field(default_factory=list)
    _left_out: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """In the order of the manifest's lines; what has no line comes first."""
        ordered = sorted(self._findings, key=lambda f: (f.line or 0, f.column or 0))
        if self._left_out:
            text = f"{self._left_out} more findings are not shown"
            ordered.append(Finding(Severity.NOTE, text, file=self.file or None))
        return tuple(ordered)

    @property
    def has_errors(self) -> bool:
        """Whether the manifest is refused."""
        return any(f.severity is Severity.ERROR for f in self._findings)

    def error(self, place: Place, message: str, cure: str = "") -> None:
        """Something that refuses the manifest."""
        self.add(Severity.ERROR, place, message, cure)

    def warning(self, place: Place, message: str, cure: str = "") -> None:
        """Something that the user should look at."""
        self.add(Severity.WARNING, place, message, cure)

    def note(self, place: Place, message: str, cure: str = "") -> None:
        """Something worth knowing."""
        self.add(Severity.NOTE, place, message, cure)

    def add(self, severity: Severity, place: Place, message: str, cure: str = "", origin: Origin | None = None) -> None:
        """One finding at `place` of the tree, or at `origin` where that is better known."""
        at = origin or locate(self.root, place)[0]
        if at.option:
            self._keep(Finding(severity, message, cure or None, path=at.option))
            return
        path = path_text(place) or None
        if not self.file:
            self._keep(Finding(severity, message, cure or None, path=path))
            return
        self._keep(Finding(severity, message, cure or None, self.file, at.mark.line, at.mark.column, path))

    def option(self, severity: Severity, name: str, message: str, cure: str = "") -> None:
        """One finding about a command-line option or an environment variable."""
        self._keep(Finding(severity, message, cure or None, path=name))

    def unreadable(self, error: Unreadable) -> None:
        """The text could not be read."""
        line, column = (error.mark.line, error.mark.column) if error.mark is not None else (None, None)
        at = (self.file, line, column) if self.file else (None, None, None)
        self._keep(Finding(Severity.ERROR, error.message, error.cure or None, *at))

    def _keep(self, finding: Finding) -> None:
        if finding in self._findings:
            return
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(finding)
            return
        self._left_out += 1
        if finding.severity is Severity.ERROR and not self.has_errors:
            self._findings[-1] = finding  # a refusal must always show why

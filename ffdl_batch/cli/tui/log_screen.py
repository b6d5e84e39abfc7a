"""The log of a job: its last lines, and new ones as they are written."""

from __future__ import annotations

from contextlib import aclosing
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from ffdl_batch.client import AsyncClient, ClientError
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.terminal_text import printable

LINES = 1000
MOST_LINES = 20_000
"""Lines that are kept; older ones are dropped."""


class LogScreen(Screen[None]):
    """Follows a log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("f", "follow", "Follow"),
        Binding("g", "begin", "Begin"),
        Binding("G,end", "end", "End", key_display="G"),
    ]

    def __init__(self, client: AsyncClient, job: JobView) -> None:
        super().__init__()
        self._client, self._job = client, job

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(f"Log of {printable(self._job.name, one_line=True)} ({self._job.id})", id="title", markup=False)
        yield RichLog(max_lines=MOST_LINES, wrap=True, markup=False, highlight=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(RichLog).focus()
        self._read()

    @work(exclusive=True)
    async def _read(self) -> None:
        log, many = self.query_one(RichLog), self._job.learners > 1
        try:
            texts = self._client.log_texts(self._job.id, follow=True, tail=LINES)
            async with aclosing(texts) as all_texts:  # type: ignore[type-var]
                async for text in all_texts:
                    mark = f"{text.learner} " if many else ""
                    for line in text.text.split("\n"):
                        log.write(_line(f"{mark}{line}"), scroll_end=self._is_following)
            log.write(Text("The log is complete.", style="dim"), scroll_end=self._is_following)
        except ClientError as error:
            log.write(Text(printable(str(error)), style="yellow"))

    @property
    def _is_following(self) -> bool:
        return self.query_one(RichLog).auto_scroll

    def action_follow(self) -> None:
        """Follow the end, or stop it."""
        log = self.query_one(RichLog)
        log.auto_scroll = not log.auto_scroll
        self.notify("The end is followed." if log.auto_scroll else "The end is not followed.")

    def action_begin(self) -> None:
        """Go to the first line that is known, and stop following."""
        log = self.query_one(RichLog)
        log.auto_scroll = False
        log.scroll_home(animate=False)

    def action_end(self) -> None:
        """Go to the last line, and follow."""
        log = self.query_one(RichLog)
        log.auto_scroll = True
        log.scroll_end(animate=False)


def _line(line: str) -> Text:
    """Return a line with its colours. Other control sequences are removed, other control characters are shown."""
    last = next((part for part in reversed(line.split("\r")) if part), "")
    text = Text.from_ansi(last)
    shown = printable(text.plain, one_line=True)
    return text if shown == text.plain else Text(shown)

"""The table of jobs, which follows their changes, and the actions on the selected job."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static
from textual.widgets.data_table import ColumnKey

from ffdl_batch.cli.commands.show import print_job
from ffdl_batch.cli.render.formatting import format_elapsed, format_number
from ffdl_batch.cli.render.job_list import elapsed_s, place_or_reason
from ffdl_batch.cli.render.plan import print_why
from ffdl_batch.cli.tui.log_screen import LogScreen
from ffdl_batch.cli.tui.metrics_screen import MetricsScreen
from ffdl_batch.client import AsyncClient, ClientError, JobFilter
from ffdl_batch.client.watching import News, Watching
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.job_state import JobState
from ffdl_batch.domain.terminal_text import printable

ROWS = 200
COLOURS = {
    "COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "HALTED": "yellow",
    "PROCESSING": "cyan", "DOWNLOADING": "cyan", "STORING": "cyan",
}  # fmt: skip
_COLUMNS = ("ID", "NAME", "STATE", "GPUS", "TIME", "NODES(REASON)")
_FIXED = 18 + 11 + 4 + 10 + 6 * 2
"""Characters of the other columns, with their padding."""
_LEAST_NAME, _MOST_NAME = 12, 32


class JobsScreen(Screen[None]):
    """Shows jobs, newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "show", "Job"),
        Binding("l", "log", "Log"),
        Binding("m", "metrics", "Metrics"),
        Binding("w", "why", "Why"),
        Binding("h", "act('halt')", "Halt"),
        Binding("r", "act('resume')", "Continue"),
        Binding("c", "act('cancel')", "Cancel"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("s", "next_state", "State"),
        Binding("o", "older", show=False),
        Binding("n", "newest", show=False),
        Binding("escape", "clear", show=False),
    ]

    def __init__(self, client: AsyncClient, watching: Watching) -> None:
        super().__init__()
        self._client, self._watching = client, watching
        self._which = JobFilter(limit=ROWS)
        self._states: Mapping[str, int] = {}
        self._jobs: dict[str, JobView] = {}
        self._shown: dict[str, tuple[str, ...]] = {}

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="counts", markup=False)
        yield Static(id="trouble", markup=False)
        yield Input(id="search", placeholder="name or id", compact=True)
        table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=False)
        yield table
        yield Footer()

    def on_mount(self) -> None:
        """Create the columns, and follow the jobs."""
        self.query_one(DataTable).add_columns(*((name, name) for name in _COLUMNS))
        self.query_one("#trouble").display = False
        self.query_one(DataTable).focus()
        self._follow()

    @work(exclusive=True, group="follow")
    async def _follow(self) -> None:
        async with aclosing(self._watching.news()) as all_news:
            async for news in all_news:
                await self._show(news)

    async def _show(self, news: News) -> None:
        trouble = self.query_one("#trouble", Static)
        trouble.display = bool(news.trouble)
        trouble.update(printable(news.trouble))
        if news.trouble:
            return
        self._states = news.states
        try:
            await self._read()
        except ClientError as error:
            trouble.display = True
            trouble.update(printable(str(error)))

    async def _read(self) -> None:
        """Read the jobs again, and change the cells that differ."""
        jobs = await self._client.list(self._which)
        self._jobs = {job.id: job for job in jobs}
        counts = "  ".join(f"{state} {count}" for state, count in self._states.items())
        chosen = " ".join((*self._which.states, self._which.text)).strip()
        self.query_one("#counts", Static).update(f"{counts or 'no jobs'}{f'   [{chosen}]' if chosen else ''}")
        rows = {job.id: self._cells(job) for job in jobs}
        table = self.query_one(DataTable)
        if _fit(table, rows) or list(rows) != list(self._shown):
            self._replace(table, rows)
        else:
            for job_id, cells in rows.items():
                for name, old, new in zip(_COLUMNS, self._shown[job_id], cells, strict=True):
                    if old != new:
                        table.update_cell(job_id, name, _styled(new))
        self._shown = rows

    def _replace(self, table: DataTable[Text], rows: Mapping[str, tuple[str, ...]]) -> None:
        """Write all rows, and keep the selected job."""
        selected = self._selected_id()
        table.clear()
        for job_id, cells in rows.items():
            table.add_row(*map(_styled, cells), key=job_id)
        if selected in rows:
            table.move_cursor(row=table.get_row_index(selected))

    def _cells(self, job: JobView) -> tuple[str, ...]:
        width = max(_LEAST_NAME, min(_MOST_NAME, self.app.size.width - _FIXED))
        name = printable(job.name, one_line=True)
        return (
            job.id,
            name if len(name) <= width else f"{name[: width - 1]}+",
            job.state,
            format_number(job.total_gpus),
            format_elapsed(elapsed_s(job)),
            printable(place_or_reason(job), one_line=True),
        )

    def _selected_id(self) -> str:
        table = self.query_one(DataTable)
        return table.ordered_rows[table.cursor_row].key.value or "" if table.row_count else ""

    def on_data_table_row_selected(self) -> None:
        """Show the selected job: the table itself handles the Enter key."""
        self.action_show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search."""
        self._search(event.value.strip())

    def action_show(self) -> None:
        """Show everything about the selected job."""
        if job_id := self._selected_id():
            self._open(lambda: self._client.get(job_id), print_job)

    def action_why(self) -> None:
        """Show why the selected job waits."""
        if job_id := self._selected_id():
            self._open(lambda: self._client.why(job_id), print_why)

    @work(exclusive=True, group="open")
    async def _open(self, read: Callable[[], Awaitable[object]], write: Callable[..., None]) -> None:
        """Show what a command prints about the value that `read` returns."""
        try:
            value = await read()
        except ClientError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            write(value)
        self.app.push_screen(_Printed(printed.getvalue()))

    def action_log(self) -> None:
        """Follow the log of the selected job."""
        if job_id := self._selected_id():
            self.app.push_screen(LogScreen(self._client, self._jobs[job_id]))

    def action_metrics(self) -> None:
        """Show the metrics of the selected job."""
        if job_id := self._selected_id():
            self.app.push_screen(MetricsScreen(self._client, self._jobs[job_id]))

    def action_act(self, verb: str) -> None:
        """Ask, and then halt, continue or cancel the selected job."""
        if job_id := self._selected_id():
            question = f"{_VERBS[verb][0]} {printable(self._jobs[job_id].name, one_line=True)} ({job_id})? (y/n)"

            def on_answer(is_sure: bool | None) -> None:
                if is_sure:
                    self._act(verb, job_id)

            self.app.push_screen(_Question(question), on_answer)

    @work
    async def _act(self, verb: str, job_id: str) -> None:
        try:
            await _VERBS[verb][1](self._client, job_id)
        except ClientError as error:
            self.notify(printable(str(error)), severity="error", markup=False)

    def action_search(self) -> None:
        """Open the search field."""
        search = self.query_one("#search", Input)
        search.add_class("open")
        search.focus()

    def action_clear(self) -> None:
        """Close the search field, and show all jobs."""
        self.query_one("#search", Input).value = ""
        self._search("")

    def _search(self, text: str) -> None:
        self.query_one("#search", Input).remove_class("open")
        self.query_one(DataTable).focus()
        self._choose(text=text, after="")

    def action_next_state(self) -> None:
        """Show only jobs of the next state that has any; after the last one, all jobs."""
        present: Sequence[str] = [state.value for state in JobState if self._states.get(state.value)]
        now = self._which.states[0] if self._which.states else None
        following = present[present.index(now) + 1 :] if now in present else present
        self._choose(states=tuple(following[:1]), after="")

    def action_older(self) -> None:
        """Show the jobs after the last one."""
        if len(self._shown) == ROWS:
            self._choose(after=list(self._shown)[-1])

    def action_newest(self) -> None:
        """Show the newest jobs."""
        self._choose(after="")

    @work(exclusive=True, group="choose")
    async def _choose(self, text: str | None = None, states: tuple[str, ...] | None = None, after: str = "") -> None:
        old = self._which
        self._which = JobFilter(
            states=old.states if states is None else states,
            text=old.text if text is None else text,
            after=after,
            limit=ROWS,
        )
        await self._show(News(self._states))


_VERBS: Mapping[str, tuple[str, Callable[[AsyncClient, str], Awaitable[object]]]] = {
    "halt": ("Halt", lambda client, job_id: client.halt(job_id)),
    "resume": ("Continue", lambda client, job_id: client.resume(job_id)),
    "cancel": ("Cancel", lambda client, job_id: client.cancel(job_id)),
}


def _styled(cell: str) -> Text:
    return Text(cell, style=COLOURS.get(cell, ""))


class _Printed(Screen[None]):
    """A text that a command would print."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "Back")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text.from_ansi(self._text), markup=False)
        yield Footer()


class _Question(ModalScreen[bool]):
    """A question for y or n."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(self._question, markup=False)
        yield Footer()


def _fit(table: DataTable[Text], rows: Mapping[str, tuple[str, ...]]) -> bool:
    """Set the widths of the columns, and return whether one has changed. The widget would measure rows only when it is
    idle, and keep lines that it has drawn before."""
    widths = [max(map(cell_len, cells)) for cells in zip(_COLUMNS, *rows.values(), strict=True)]
    columns = [table.columns[ColumnKey(name)] for name in _COLUMNS]
    changed = [one.width for one in columns] != widths
    for column, width in zip(columns, widths, strict=True):
        column.auto_width, column.width = False, width
    return changed

"""The application: one client, one watcher of changes, and the screens."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Label, Static

from ffdl_batch.cli.tui.jobs_screen import JobsScreen
from ffdl_batch.client import AsyncClient
from ffdl_batch.client.watching import Watching

_HELP = """\
Table      Enter  the job          l  its log         m  its metrics
           w      why it waits     h  halt            r  continue
           c      cancel           /  search          s  next state
           o      older jobs       n  newest jobs     q  quit
Elsewhere  Esc    back             f  follow the log  g, G  begin, end

The table follows the jobs by itself. Colours are off if NO_COLOR is set.
"""


class JobsApp(App[None]):
    """Shows the jobs of a daemon until the user quits."""

    TITLE = "ffdl"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "help", "Keys", key_display="?"),
    ]
    CSS = """
    DataTable { height: 1fr; }
    #counts, #trouble, #title { height: auto; padding: 0 1; }
    #trouble { color: $warning; }
    #search { display: none; border: none; height: 1; }
    #search.open { display: block; }
    RichLog, VerticalScroll { height: 1fr; padding: 0 1; }
    ModalScreen { align: center middle; }
    #question { width: 90%; max-width: 76; height: auto; border: round $primary; padding: 1 2; }
    """

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(ansi_color=True)
        self.client = client
        self.watching = Watching(client)

    def on_mount(self) -> None:
        """Show the table."""
        self.push_screen(JobsScreen(self.client, self.watching))

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(_Text(_HELP))


class _Text(ModalScreen[None]):
    """A text that any key closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(self._text, markup=False)
            yield Label("Press any key.")
        yield Footer()

    def on_key(self) -> None:
        self.dismiss()

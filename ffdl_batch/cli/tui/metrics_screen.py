"""Metrics and usage of a job as a table with sparklines."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from ffdl_batch.cli.render.charts import short
from ffdl_batch.client import AsyncClient, Client, ClientError
from ffdl_batch.domain.job.views import JobView
from ffdl_batch.domain.metrics.series import Curves, sparkline
from ffdl_batch.domain.terminal_text import printable

AGAIN_S = 10.0
_SPARK = 24


class MetricsScreen(Screen[None]):
    """Shows the latest values, again every ten seconds while the job runs."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "Back")]

    def __init__(self, client: AsyncClient, job: JobView) -> None:
        super().__init__()
        self._client, self._job = client, job

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(
            f"Metrics of {printable(self._job.name, one_line=True)} ({self._job.id})", id="title", markup=False
        )
        table: DataTable[str] = DataTable(cursor_type="row")
        yield table
        yield Footer()

    def on_mount(self) -> None:
        """Create the columns, and read."""
        self.query_one(DataTable).add_columns("METRIC", "AT", "LAST", "LEAST", "MOST", "COURSE")
        self._read()
        if self._job.ended_at is None:
            self.set_interval(AGAIN_S, self._read)

    @work(exclusive=True)
    async def _read(self) -> None:
        try:
            curves = await self._client.run(self._curves)
        except ClientError as error:
            self.notify(printable(str(error)), severity="error", markup=False)
            return
        table = self.query_one(DataTable)
        table.clear()
        for one in curves:
            if one.points:
                values = (short(value, one.name.unit) for value in (one.last, one.least, one.most))
                course = sparkline([y for _, y in one.points], _SPARK)
                label = printable(one.name.label, one_line=True)
                table.add_row(label, f"{one.name.axis} {short(one.last_x)}", *values, course)
        if not table.row_count:
            table.add_row("nothing was measured yet", "", "", "", "", "")

    def _curves(self, client: Client) -> Curves:
        curves = Curves()
        for line in client.metrics(self._job.id):
            curves.add_record(self._job.id, line.learner, line.record)
        for sample in client.usage(self._job.id):
            curves.add_sample(self._job.id, sample.node, sample.sample)
        return curves

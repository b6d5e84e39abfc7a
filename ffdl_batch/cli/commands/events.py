"""``ffdl events``."""

from __future__ import annotations

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import detachable
from ffdl_batch.cli.render.formatting import format_time, paint_state, print_json
from ffdl_batch.domain.job_state import Cause
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.output import echo_styled


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only events after this number.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per event.")
def events(*, job_id: str, follow: bool, after: int, as_json: bool) -> None:
    """The changes of a job's state: time, state, attempt, the cause if a job went back, and what there is to say."""
    with open_client() as client, detachable([job_id], f"ffdl events -f {job_id}"):
        for event in client.events(job_id, follow=follow, after=after):
            if as_json:
                print_json({"event": event})
                continue
            code = f"{event.error_code} " if event.error_code not in ("", "000") else ""
            is_told = event.cause == Cause.PROGRESS or event.message.startswith(event.cause)
            cause = "" if is_told else f"{event.cause}: "
            said = printable((cause + code + event.message).removesuffix(": "), one_line=True)
            state = paint_state(event.state, f"{event.state:<11}")
            echo_styled(f"{format_time(event.at)}  {state}  {event.attempt}  {said}".rstrip())

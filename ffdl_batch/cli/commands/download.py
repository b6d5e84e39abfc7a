"""``ffdl download``: copy results, model, logs or checkpoint of a job into a directory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.arrays import elements_of, is_array
from ffdl_batch.cli.commands.data import read_directory, report_done, resumable
from ffdl_batch.cli.connection import find_place, open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.progress import Meter
from ffdl_batch.client.stores.job_files import Copy, bring_output
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import complain
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.option_types import WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.errors import ClientError
    from ffdl_batch.domain.job.views import OutputView

_RESULTS = "results"


def _kinds(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options that select what is copied. The command gets their names as `kinds`; the default is results."""
    texts = {
        _RESULTS: "Copy the files in $RESULT_DIR.  [default]",
        "model": "Copy the model archive as submitted, model.zip.",
        "logs": "Copy the logs, a directory for each learner.",
        "checkpoint": "Copy the files in $CHECKPOINT_DIR.",
    }

    @functools.wraps(command)
    def wrapped(**options: object) -> object:
        named = tuple(kind for kind in texts if options.pop(kind))
        return command(kinds=named or (_RESULTS,), **options)

    for kind, text in reversed(texts.items()):
        wrapped = click.option(f"--{kind}", is_flag=True, help=text)(wrapped)
    return wrapped


@click.command()
@click.argument("job_id", metavar="ID")
@_kinds
@click.option(
    "--out", metavar="DIR", callback=read_directory, help="Directory for the files.  [default: ID/results etc.]"
)
@click.option("--attempt", type=WholeNumber(1), metavar="N", help="Attempt.  [default: the last one that ran]")
@click.option("--force", is_flag=True, help="Replace files in DIR that differ.")
@click.option(
    "-j", "--parallel", type=WholeNumber(1, 64), default=8, show_default=True, help="Number of parallel requests."
)
@click.option("-Q", "--quiet", is_flag=True, help="Print errors only.")
@json_option()
def download(  # noqa: PLR0913  (one parameter per option)
    *,
    job_id: str,
    kinds: Sequence[str],
    out: str | None,
    attempt: int | None,
    force: bool,
    parallel: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Copy the results of a job, or what the flags name, into a directory.

    With several flags, each has a directory of its own: DIR/results, DIR/model and so on. If one of them cannot be
    copied, the others are; the errors are printed at the end.

    Of an array, the output of each job goes into a directory named by its index: DIR/0, DIR/1 and so on.

    While a job runs, the files that exist now are copied. Files that DIR already has are skipped. If a file in DIR
    differs and was not copied by an earlier call, nothing is copied without --force.

    Links within the directory, permissions, holes and empty directories are kept. Other links, pipes, sockets and
    devices are left out and listed on standard error. Files and directories that cannot be read are listed there, too;
    all others are copied, and the exit status is 1.
    """
    asked = _Asked(kinds, attempt, force, parallel, quiet, as_json)
    failures = _Failures()
    with open_client(quiet=quiet) as client:
        if is_array(job_id):
            for job in elements_of(client, job_id):
                name = f"{job_id}_{job.array_index}"
                _download(client, asked, job.id, f"{out or job_id}/{job.array_index}", out, failures, name)
        else:
            _download(client, asked, job_id, out, out, failures)
    return failures.report()


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is copied of each job, and how."""

    kinds: Sequence[str]
    attempt: int | None
    force: bool
    parallel: int
    quiet: bool
    as_json: bool


def _download(  # noqa: PLR0913, PLR0917  (what is copied, and where to)
    client: Client,
    asked: _Asked,
    job_id: str,
    place: str | None,
    out: str | None,
    failures: _Failures,
    name: str = "",
) -> None:
    """Copy the output of one job into `place`. `out` is the directory that the user named. `name` is the job in
    messages, if it is an element of an array."""
    is_one = len(asked.kinds) == 1
    found = _find(client, job_id, asked.kinds, asked.attempt, failures, name)
    if not asked.quiet:
        for note in dict.fromkeys(output.note for output in found if output.note):
            complain(f"{name}: {note}" if name else note)
    for output in found:
        below = place if place and out and is_one else f"{place or output.job_id}/{output.kind}"
        directory = Path(below).absolute()
        with failures.of(": ".join(word for word in (name, "" if is_one else output.kind) if word)):
            with resumable(), Meter(quiet=asked.quiet) as meter:
                copy = Copy(output, directory, asked.force, asked.parallel)
                done = bring_output(client.output, copy, find_place(), meter.show, meter.each_s)
            job = output.job_id if name else ""
            to = f"brought to {directory}"
            report_done(done, to, quiet=asked.quiet, as_json=asked.as_json, kind=output.kind, job=job)


class _Failures:
    """Why output was not copied, or not as a whole."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        """Exit codes by message."""

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Collect the error inside. `what` is named in its message; "" = it need not be."""
        from ffdl_batch.client.errors import ClientError

        try:
            yield
        except ClientError as error:
            self.add(error, what)

    def add(self, error: ClientError, what: str = "") -> None:
        """Add an error."""
        self._codes.setdefault(f"{what}: {error}" if what else f"{error}", error.problem.exit_code)

    def report(self) -> int:
        """Print the errors, and return the exit code of the first one."""
        for message in self._codes:
            complain(message)
        return next(iter(self._codes.values()), ExitCode.OK)


def _find(
    client: Client, job_id: str, kinds: Sequence[str], attempt: int | None, failures: _Failures, name: str
) -> list[OutputView]:
    """Return where each kind is. Raises UnknownJob, NotAllowed and DaemonUnreachable, which concern all kinds."""
    from ffdl_batch.client import NotAllowed, RequestRefused, UnknownJob

    found: list[OutputView] = []
    for kind in kinds:
        try:
            found.append(client.output.find(job_id, kind, attempt))
        except (UnknownJob, NotAllowed):
            raise
        except RequestRefused as error:
            failures.add(error, name)
    return found

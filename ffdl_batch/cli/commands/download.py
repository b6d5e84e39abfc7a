"""``ffdl download``: what a job left, or has until now, into a directory."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.attempt.directory_tree import remove_tree
from ffdl_batch.cli.commands.data import read_directory, report_done, resumable
from ffdl_batch.cli.connection import find_elsewhere, find_keys, open_client
from ffdl_batch.cli.exit_handling import complain
from ffdl_batch.cli.render.progress import Meter
from ffdl_batch.domain.data.staging_protocol import Direction, Done, Note, Progress
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind

if TYPE_CHECKING:
    from ffdl_batch.client import Client
    from ffdl_batch.client.stores.credentials import Access
    from ffdl_batch.domain.job.views import LeftView

_NAMES = {"help_option_names": ["-h", "--help"]}
_RESULTS = "results"


def _kinds(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say what is brought; the command gets their names as `kinds`, results where there is none."""
    told = {
        _RESULTS: "What it wrote to $RESULT_DIR.  [default]",
        "model": "The model archive as submitted, model.zip.",
        "logs": "Logs, a directory per learner.",
        "checkpoint": "What is in $CHECKPOINT_DIR.",
    }

    @functools.wraps(command)
    def wrapped(**options: object) -> None:
        named = tuple(kind for kind in told if options.pop(kind))
        command(kinds=named or (_RESULTS,), **options)

    for kind, text in reversed(told.items()):
        wrapped = click.option(f"--{kind}", is_flag=True, help=text)(wrapped)
    return wrapped


@click.command(context_settings=_NAMES)
@click.argument("job_id", metavar="ID")
@_kinds
@click.option(
    "--out", metavar="DIR", callback=read_directory, help="Where the files go; ID/results and so on by default."
)
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="Of this attempt; by default of the last that ran."
)
@click.option("--force", is_flag=True, help="Replace files in DIR that differ.")
@click.option("-j", "--parallel", type=click.IntRange(1, 64), default=8, show_default=True, help="Files at once.")
@click.option("-Q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
) -> None:
    """Bring what a job left into a directory: its results, or what flags name.

    With several flags each has a directory of its own below DIR: DIR/results, DIR/model and so on.

    Of a job that goes on it is what there is now. Files that are there already do not move again. Where DIR has a file
    of the same name that differs, and that no earlier call brought, nothing is brought without --force.

    Links that stay in the directory, permissions, holes and empty directories are kept. Standard error names other
    links.
    """
    with open_client(quiet=quiet) as client:
        found = [client.left.find(job_id, kind, attempt) for kind in kinds]
        if not quiet:
            for note in dict.fromkeys(left.note for left in found if left.note):
                complain(note)
        for left in found:
            below = out if out and len(found) == 1 else f"{out or left.job_id}/{left.kind}"
            directory = Path(below).absolute()
            with (
                resumable(),
                Meter(quiet=quiet) as meter,
                _source(client, left, directory, meter) as (access, prefix, memory),
            ):
                roots = (left.directory, *left.roots)
                done = _bring(access, prefix, memory, directory, meter, roots, force=force, parallel=parallel)
            report_done(done, f"brought to {directory}", quiet=quiet, as_json=as_json, kind=left.kind)


def _bring(  # noqa: PLR0913  (what a move is made of)
    access: Access,
    prefix: str,
    memory: str,
    directory: Path,
    meter: Meter,
    roots: tuple[str, ...],
    *,
    force: bool,
    parallel: int,
) -> Done:
    from ffdl_batch.client.stores.transfers import Move, move

    asked = Move(Direction.IN, access, prefix, directory, (), force, parallel, roots, memory)
    return move(asked, meter.show, meter.each_s, os.environ)


@contextmanager
def _source(client: Client, left: LeftView, out: Path, meter: Meter) -> Iterator[tuple[Access, str, str]]:
    """From where it comes: the store; the directory, if this machine sees it and nobody writes there; else what the
    daemon sends, in a directory that is removed afterwards. And a prefix, and the name of the move."""
    from ffdl_batch.client.stores.credentials import Access, of_job
    from ffdl_batch.client.stores.transfers import transfers_dir

    words = (left.job_id, left.kind, str(out))
    memory = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    if left.store is not None:
        near = bool(left.directory)
        yield of_job(left.store, Path(left.secrets), find_keys(), os.environ, near=near), left.prefix, memory
        return
    directory = StoreAddress(StoreKind.FILE, container=left.directory)
    if not left.is_partial and find_elsewhere() is None and _is_seen(left):
        yield Access(directory, {}), left.name, memory
        return

    def progressed(size: int) -> None:
        meter.show(Progress(0, 0, size, size, 0.0))

    sent = transfers_dir(os.environ) / memory / "sent"
    remove_tree(str(sent))
    try:
        sent.mkdir(mode=0o700, parents=True)
        client.left.bring(left, sent, progressed, lambda what: meter.show(Note(what)))
        yield Access(replace(directory, container=str(sent)), {}), left.name, memory
    finally:
        with suppress(OSError):
            remove_tree(str(sent))


def _is_seen(left: LeftView) -> bool:
    """Whether the daemon's directory is the one of that path here."""
    try:
        return Path(left.directory).stat().st_ino == left.inode and os.access(left.directory, os.R_OK | os.X_OK)
    except OSError:
        return False

"""``ffdl data``: copy files to a store and back, and list a store."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.options.store_selection import Chosen, StoreOptions, as_source, choose_store, store_options
from ffdl_batch.cli.render.formatting import format_time, print_json
from ffdl_batch.cli.render.progress import Meter, describe_done
from ffdl_batch.domain.data.staging_protocol import Direction, Done, Entry, Line
from ffdl_batch.domain.data.store_kinds import StoreKind
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.domain.terminal_text import printable
from ffdl_batch.exit_handling import Detached, Stop, complain
from ffdl_batch.host.permissions import with_denial
from ffdl_batch.option_types import WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.client.stores.transfers import Move

_PARALLEL = click.option(
    "-j", "--parallel", type=WholeNumber(1, 64), default=8, show_default=True, help="Number of parallel requests."
)
_QUIET = click.option("-Q", "--quiet", is_flag=True, help="Print errors only.")
_JSON = json_option()


def read_directory(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the name of a directory for files. Callback of an option."""
    if value is not None and os.path.lexists(value) and not Path(value).is_dir():
        raise click.BadParameter(
            f"{value} is not a directory; name a directory, or a name that does not exist", ctx, param
        )
    return value


@click.group()
def data() -> None:
    """Copy files to a store and back, and list a store. No daemon is needed.

    \b
    A store is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, swift://CONTAINER/PREFIX,
    https://HOST/FILE, file:///PATH, sftp://[USER@]HOST/PATH, or another protocol
    of fsspec. Credentials come from the store's usual environment variables
    (AWS_ACCESS_KEY_ID and so on) or from your secrets (--secret), sftp's from
    your keys.

    With --manifest, the store is the data store of a manifest, with the credentials that the manifest names. URL is
    then a path below its container. To store what a job will read: ffdl data put DIRECTORY --manifest FILE

    If a transfer is interrupted, run the same command again to continue it.
    """


@data.command()
@click.argument("local", metavar="LOCAL")
@click.argument("target", metavar="[URL]", required=False)
@store_options
@_PARALLEL
@_QUIET
@_JSON
def put(*, local: str, target: str | None, options: StoreOptions, parallel: int, quiet: bool, as_json: bool) -> None:
    """Store the content of a directory, or a file, below URL.

    Files that the store already has (by checksum) are skipped. Nothing is deleted in the store. Links, permission bits
    and empty directories are stored, too. Links that lead out of the directory are left out.
    """
    from ffdl_batch.client.stores.transfers import Move

    directory, only = _source(Path(local))
    chosen = choose_store(target, options)
    _make_target(chosen)
    roots = () if only else (str(directory), str(directory.resolve()))
    asked = Move(Direction.OUT, chosen.access, chosen.prefix, directory, only, parallel=parallel, roots=roots)
    report_done(_moved(asked, quiet=quiet), "stored", quiet=quiet, as_json=as_json)


@data.command()
@click.argument("source", metavar="[URL]", required=False)
@click.option(
    "--out", metavar="DIR", default=".", show_default=True, callback=read_directory, help="Directory for the files."
)
@click.option("--force", is_flag=True, help="Replace files in DIR that differ from the store.")
@store_options
@_PARALLEL
@_QUIET
@_JSON
def get(  # noqa: PLR0913  (one parameter per option)
    *, source: str | None, out: str, force: bool, options: StoreOptions, parallel: int, quiet: bool, as_json: bool
) -> None:
    """Copy all objects below URL, or one object, into a directory.

    Files are compared with the store by checksum, or else by size and time. If a file in DIR differs from the store and
    was not copied by an earlier call, nothing is copied without --force. Links, permission bits and empty directories
    are restored.
    """
    from ffdl_batch.client.stores.transfers import Move

    chosen = as_source(choose_store(source, options))
    directory = Path(out).absolute()
    roots = _stored_roots(chosen)
    asked = Move(Direction.IN, chosen.access, chosen.prefix, directory, (), force, parallel, roots)
    report_done(_moved(asked, quiet=quiet), "brought", quiet=quiet, as_json=as_json)


@data.command("ls")
@click.argument("source", metavar="[URL]", required=False)
@store_options
@_JSON
def list_(*, source: str | None, options: StoreOptions, as_json: bool) -> None:
    """List the objects below URL: size in bytes, time and name."""
    from ffdl_batch.client.stores.transfers import list_store

    chosen = as_source(choose_store(source, options))
    found = [0, 0]

    def show(line: Line) -> None:
        if not isinstance(line, Entry):
            return
        found[0], found[1] = found[0] + 1, found[1] + max(line.size, 0)
        if as_json:
            print_json({"entry": line})
        else:
            size = str(line.size) if line.size >= 0 else "?"
            when = format_time(line.mtime) if line.mtime else "-"
            click.echo(f"{size:>14}  {when:<19}  {printable(line.name, one_line=True)}")

    list_store(chosen.access, chosen.prefix, show)
    if not as_json:
        complain(f"{counted(found[0], 'file')}, {size_text(found[1])}")


def _source(local: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the directory, and the pattern of the file if `local` is a file."""
    path = local.absolute()
    try:
        if path.is_dir():
            return path, ()
        if path.is_symlink():
            raise Stop(ExitCode.NO_INPUT, f"{local} is a symbolic link, which is not followed; name the file itself")
        if not path.is_file():
            why = "is neither a file nor a directory" if path.exists() else "does not exist"
            raise Stop(ExitCode.NO_INPUT, f"{local} {why}")
    except PermissionError as error:
        denied = PermissionError(error.errno, error.strerror, str(path))
        raise Stop(ExitCode.FAILED, with_denial(f"{local} cannot be read: {error.strerror}", denied)) from None
    return path.parent, (glob.escape(path.name),)


def _stored_roots(chosen: Chosen) -> tuple[str, ...]:
    """Return the absolute paths by which links in a store that is a directory may name that directory."""
    address = chosen.access.address
    if address.kind is not StoreKind.FILE:
        return ()
    top = Path(address.container, chosen.prefix)
    return (str(top), str(top.resolve()))


def _make_target(chosen: Chosen) -> None:
    address = chosen.access.address
    if address.kind is StoreKind.HTTP:
        raise click.UsageError("a web server takes no files; name another store")
    if address.kind is not StoreKind.FILE:
        return
    try:
        Path(address.container).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(ExitCode.FAILED, f"{address.container} cannot be created: {error.strerror}") from None


def _moved(asked: Move, *, quiet: bool) -> Done:
    from ffdl_batch.client.stores.transfers import move

    with resumable(), Meter(quiet=quiet) as meter:
        return move(asked, meter.show, meter.each_s, os.environ)


@contextmanager
def resumable() -> Iterator[None]:
    """Turn Ctrl-C inside into :class:`Detached`: the message says how to continue the transfer."""
    try:
        yield
    except KeyboardInterrupt:
        raise Detached(
            "interrupted; run the same command again to continue (until then, files that are incomplete are named "
            ".ffdl-*.part)"
        ) from None


def report_done(done: Done, verb: str, *, quiet: bool, as_json: bool, kind: str = "", job: str = "") -> None:
    """Print what was done, as a line or as JSON. `kind` and `job` name it if there are several. With `quiet`, still
    report on standard error that entries were left out."""
    if quiet and done.skipped:
        were = "entry was" if done.skipped == 1 else "entries were"
        complain(f"{kind or verb}: {done.skipped} {were} left out; without -Q, the names and reasons are printed")
    if as_json:
        print_json({name: value for name, value in (("job", job), ("kind", kind), ("done", done)) if value})
    elif not quiet:
        click.echo(describe_done(done, verb))

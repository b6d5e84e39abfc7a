"""``ffdl secret``: named values that manifests refer to. A value is never an argument: others can read those."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.exit_handling import Stop
from ffdl_batch.cli.render.formatting import format_time, print_json, print_table
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.secret_references import MAX_BYTES, why_no_name, why_no_value, without_line_end

_NAMES = {"help_option_names": ["-h", "--help"]}
_LINE_END = 2


@click.group(context_settings=_NAMES)
def secret() -> None:
    """Values that manifests name and nobody reads: ${secret:NAME} in a data store or under batch.secrets."""


@secret.command("set", context_settings={**_NAMES, "allow_extra_args": True})
@click.argument("name")
@click.option("--from-file", metavar="FILE", help="Read the value from FILE; - is standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def set_secret(context: click.Context, name: str, from_file: str | None, as_json: bool) -> None:
    """Set the secret NAME, anew where it is there; the value is asked for without being shown.

    Where standard input is no terminal the value is read from it. It is text, 64 KiB at most; one line end behind it is
    left out.
    """
    from ffdl_batch.host.core_dumps import forbid_core_dumps

    if context.args:  # not repeated: it may be the value
        message = "the value is no argument, because every user of the machine can read those; leave it out"
        raise Stop(ExitCode.USAGE, f"{message}, and it is asked for (and set another one, if it was a value)")
    if why := why_no_name(name):
        raise Stop(ExitCode.USAGE, why)
    with open_client() as client:
        forbid_core_dumps()
        value = _value(name, from_file)
        if why := why_no_value(value):
            raise Stop(ExitCode.USAGE, why)
        found = client.secrets.set(name, value)
    if as_json:
        print_json({"secret": found})
    else:
        click.echo(f"secret {found.name} is set")


def _value(name: str, from_file: str | None) -> str:
    if from_file is None and sys.stdin.isatty():
        asked: str = click.prompt(f"value of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    try:
        if from_file in (None, "-"):
            data = sys.stdin.buffer.read(MAX_BYTES + _LINE_END + 1)
        else:
            with Path(str(from_file)).open("rb") as file:
                data = file.read(MAX_BYTES + _LINE_END + 1)
        return without_line_end(data.decode("utf-8"))
    except OSError as error:
        raise Stop(ExitCode.NO_INPUT, f"{from_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Stop(ExitCode.USAGE, "the value is not text in UTF-8: encode it, with base64 for one") from None


@secret.command("list", context_settings=_NAMES)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_secrets(as_json: bool) -> None:
    """The secrets by name: when each was set, and how many jobs that live, or owe a store, refer to it. Values
    are not shown."""
    with open_client() as client:
        found = client.secrets.list()
    if as_json:
        print_json({"secrets": found})
    elif found:
        print_table(("NAME", "SET", "JOBS"), [(one.name, format_time(one.set_at), str(one.jobs)) for one in found])


@secret.command("rm", context_settings=_NAMES)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Also where jobs need it: what starts of them or is stored later may fail.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def remove_secrets(names: Sequence[str], force: bool, as_json: bool) -> None:
    """Remove secrets."""
    with open_client() as client:
        for name in names:
            found = client.secrets.remove(name, force=force)
            if as_json:
                print_json({"secret": found})
            else:
                click.echo(f"secret {found.name} is removed")

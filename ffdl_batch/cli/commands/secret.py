"""``ffdl secret``: named values that manifests refer to. A value is never an argument, because others can read
those."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_table
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.secret_references import MAX_BYTES, why_no_name, why_no_value, without_line_end
from ffdl_batch.exit_handling import Stop

_LINE_END = 2


@click.group()
def secret() -> None:
    """Manage secrets: values that manifests refer to as ${secret:NAME}, in a data store or under batch.secrets."""


@secret.command("set", context_settings={"allow_extra_args": True})
@click.argument("name")
@click.option("--from-file", metavar="FILE", help="Read the value from FILE; - is standard input.")
@json_option()
@click.pass_context
def set_secret(context: click.Context, name: str, from_file: str | None, as_json: bool) -> None:
    """Set the secret NAME, or replace its value. The command prompts for the value and does not echo it.

    If standard input is not a terminal, the value is read from it. It must be UTF-8 text of at most 64 KiB. A line end
    after it is removed.
    """
    from ffdl_batch.host.core_dumps import forbid_core_dumps

    if context.args:  # not repeated: it may be the value
        message = (
            "the value must not be an argument, because every user of the machine can read arguments; leave it out"
        )
        raise Stop(ExitCode.USAGE, f"{message}, and enter it at the prompt (if this was the value, choose another one)")
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
        raise Stop(ExitCode.USAGE, "the value is not UTF-8 text; encode it, for example with base64") from None


@secret.command("list")
@json_option()
def list_secrets(as_json: bool) -> None:
    """List the secrets by name: when each was set, and how many jobs need it, because they are live or have a pending
    upload. Values are not shown."""
    with open_client() as client:
        found = client.secrets.list()
    if as_json:
        print_json({"secrets": found})
    elif found:
        print_table(("NAME", "SET", "JOBS"), [(one.name, format_time(one.set_at), str(one.jobs)) for one in found])


@secret.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Remove it even if jobs need it. Their next attempts and uploads may fail.")
@json_option()
def remove_secrets(names: Sequence[str], force: bool, as_json: bool) -> None:
    """Remove secrets."""
    with open_client() as client:
        for name in names:
            found = client.secrets.remove(name, force=force)
            if as_json:
                print_json({"secret": found})
            else:
                click.echo(f"secret {found.name} is removed")

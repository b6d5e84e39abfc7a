"""``ffdl-admin``: groups of commands, each imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import NoReturn

import click

from ffdl_batch import __version__
from ffdl_batch.admin.exit_handling import run

GROUPS: dict[str, tuple[str, str]] = {
    "cache": ("cache:cache", "The cache of data sets: trim it to its limit."),
    "db": ("database.command:db", "The database: upgrade, check, back up, restore."),
    "doctor": ("doctor:doctor", "What would make jobs fail, found beforehand."),
    "tenant": ("tenant:tenant", "Tenants of a cluster: make one, print what it needs."),
}


class LazyGroup(click.Group):
    """Knows its groups by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        """The groups."""
        return list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The group; None where there is no such one."""
        if cmd_name not in GROUPS:
            return None
        module, _, name = GROUPS[cmd_name][0].partition(":")
        command = getattr(import_module(f"ffdl_batch.admin.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The groups with their line from the table: help imports none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in GROUPS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="ffdl-admin", message="%(prog)s %(version)s")
def ffdl_admin() -> None:
    """Administration of an installation.

    The configuration is that of `ffdl config`, as a daemon that is started here would use it. Exit
    codes: 0 done, 1 a fault was found, 2 wrong usage, 66 missing input, 69 something needed is not there, 75 try
    again, 77 not allowed, 78 bad configuration, 130 interrupted.
    """


def main() -> NoReturn:
    """The console script ``ffdl-admin``."""
    run(ffdl_admin, "ffdl-admin")


if __name__ == "__main__":
    main()

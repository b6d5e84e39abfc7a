"""``ffdl-admin``: groups of commands, each imported when it is used."""

from __future__ import annotations

from typing import NoReturn

import click

from ffdl_batch import __version__
from ffdl_batch.admin.exit_handling import run
from ffdl_batch.lazy_group import LazyGroup

GROUPS: dict[str, tuple[str, str]] = {
    "cache": ("cache:cache", "The cache of data sets: trim it to its limit."),
    "db": ("database.command:db", "The database: upgrade, check, back up, restore."),
    "doctor": ("doctor:doctor", "What would make jobs fail, found beforehand."),
    "tenant": ("tenant:tenant", "Tenants of a cluster: make one, print what it needs."),
}


@click.group(
    cls=LazyGroup, package="ffdl_batch.admin", table=GROUPS, context_settings={"help_option_names": ["-h", "--help"]}
)
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

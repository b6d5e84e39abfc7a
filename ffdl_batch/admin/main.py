"""``ffdl-admin``: groups of commands, each imported when it is used."""

from __future__ import annotations

from typing import NoReturn

import click

from ffdl_batch import __version__
from ffdl_batch.exit_handling import run
from ffdl_batch.lazy_group import LazyGroup

GROUPS: dict[str, tuple[str, str]] = {
    "cache": ("cache:cache", "Trim the cache of data sets to its limit, and serve a shared one."),
    "db": ("database.command:db", "Upgrade, check, back up and restore the database."),
    "doctor": ("doctor:doctor", "Find what would make jobs fail."),
    "emergency": ("site_tenants:emergency", "Stop users, or the whole service of a site."),
    "member": ("site_tenants:member", "Add and remove members of a site's tenants."),
    "quota": ("site_tenants:quota", "Set and remove limits of a site's tenants."),
    "support": ("support:support", "Write an archive about this installation, for a support ticket."),
    "tenant": ("site_tenants:tenant", "Manage the tenants of a site, and create those of a cluster."),
}


@click.group(
    cls=LazyGroup, package="ffdl_batch.admin", table=GROUPS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, "-V", "--version", prog_name="ffdl-admin", message="%(prog)s %(version)s")
def ffdl_admin() -> None:
    """Administer an installation.

    The configuration is that of `ffdl config`, as a daemon that starts here would use it. Exit codes: 0 success, 1 a
    fault was found, 2 wrong usage, 66 missing input, 69 unavailable, 75 try again, 77 not allowed, 78 invalid
    configuration, 130 interrupted.
    """


def main() -> NoReturn:
    """Run the console script ``ffdl-admin``."""
    run(ffdl_admin, "ffdl-admin", expected=OSError)


if __name__ == "__main__":
    main()

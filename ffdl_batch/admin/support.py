"""Implement ``ffdl-admin support``: write an archive about this installation for a support ticket."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.option_types import NamedPath

if TYPE_CHECKING:
    from ffdl_batch.config import Settings
    from ffdl_batch.domain.job.views import SupportPart


@click.command()
@click.option("-o", "--output", type=NamedPath(path_type=Path), metavar="FILE",
              help="File to write. Default: ffdl-support-HOST.tar.gz.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def support(output: Path | None, force: bool) -> None:
    """Write an archive about this installation, mode 0600, to attach to a support ticket. It needs no daemon or hub.

    It contains the results of `ffdl-admin doctor`, versions, the configuration and its files, the revision and size of
    the database, how many jobs are in each state, the ends of the daemon's log and of the journals of the
    hub and the spawner, and the states of ffdl's units. These logs identify jobs and users by id and name only. Secrets
    are replaced by asterisks. Review the archive before you send it. MANIFEST.txt in it lists what it contains, and
    what was left out and why.

    Run it as root for the journals and for the files of the site, and as a user for the user's own daemon.

    Exit code 0: the archive was written; 1: the file cannot be written; 2: the file exists, is not a regular
    file, or its directory does not exist.
    """
    from ffdl_batch.domain.job.views import SupportPart
    from ffdl_batch.support_bundle import UNREMOVED, check_target, write_archive

    target = output or Path(f"ffdl-support-{platform.node()}.tar.gz")
    check_target(target, force=force)
    values, unread = _own_secrets()
    warning = f"Secrets that cannot be read are not replaced; look for their values: {'; '.join(unread)}\n"
    first = [SupportPart(UNREMOVED, warning)] if unread else []
    click.echo(write_archive(target, [*first, *_parts()], values, force=force))
    if unread:
        complain(f"warning: {warning}")


def _parts() -> Iterator[SupportPart]:
    from ffdl_batch.admin.doctor import examine
    from ffdl_batch.config.daemon_location import LOG_NAME
    from ffdl_batch.config.load import lasting_files
    from ffdl_batch.support_bundle import command_part, describe_versions, file_part, json_part

    yield json_part("versions.json", describe_versions())
    yield _tried("doctor.json", lambda: examine(""))
    yield _tried("configuration.json", lambda: {key: [value, origin] for key, value, origin in _settings().explain()})
    named = os.environ.get("FFDL_CONFIG")
    for number, path in enumerate([*lasting_files(os.environ), *([Path(named)] if named else [])], 1):
        place = path.absolute()
        yield file_part(f"configuration/{number}-{path.name}", str(place), below=str(place.parent))
    yield _tried("database.json", _describe_database)
    with contextlib.suppress(Stop):  # configuration.json has the error
        state = _settings().state_dir
        yield file_part("daemon.log", f"{state}/{LOG_NAME}", below=state, is_rotated=True)
    yield command_part("units.txt", ["systemctl", "list-units", "--all", "--plain", "--no-pager", "--", "ffdl*"])
    for unit in ("ffdl-hub", "ffdl-spawner"):
        argv = ["journalctl", "--no-pager", "--quiet", "--output=short-iso", "--lines=500", f"--unit={unit}.service"]
        yield command_part(f"{unit}.log", argv)


def _tried(name: str, describe: Callable[[], object]) -> SupportPart:
    from ffdl_batch.domain.job.views import SupportPart
    from ffdl_batch.support_bundle import json_part

    try:
        return json_part(name, describe())
    except (Stop, OSError) as error:
        return SupportPart(name, left_out=str(error))


def _settings() -> Settings:
    from ffdl_batch.config import ConfigError, load_settings

    try:
        return load_settings()
    except ConfigError as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from error


def _describe_database() -> dict[str, object]:
    """Return the revision and the size of the database, and how many jobs are in each state. Raises Stop."""
    from sqlalchemy import func, select

    from ffdl_batch.admin.database.access import find_place, opened
    from ffdl_batch.store.schema import ATTEMPTS, HISTORY, JOBS
    from ffdl_batch.store.schema_upgrade import HEAD, standing_of
    from ffdl_batch.store.sqlite_files import companions

    place = find_place()
    files = (place.file, *companions(place.file)) if place.file else ()
    with opened(place) as database, database.reading() as connection:
        states = connection.execute(select(JOBS.c.state, func.count()).group_by(JOBS.c.state))
        counts = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (JOBS, ATTEMPTS, HISTORY)
        }
        return {
            "database": database.place,
            "revision": standing_of(connection).revision,
            "head": HEAD,
            "bytes": {path.name: path.stat().st_size for path in files if path.exists()},
            "states": {row[0]: row[1] for row in states},
            "rows": counts,
        }


def _own_secrets() -> tuple[set[str], list[str]]:
    """Return the values of the secrets of the user who runs this, and which of them cannot be read, and why."""
    from ffdl_batch.attempt.layout import Root
    from ffdl_batch.services.queries.support_parts import configured_secrets
    from ffdl_batch.services.secrets.job_secrets import kept_secrets, read_secret

    values, unread = set[str](), list[str]()
    try:
        settings = _settings()
        values |= configured_secrets(settings)
        root = Root(settings.jobs_dir)
        names = [one.name for one in kept_secrets(root)]
    except (Stop, OSError) as error:
        return values, [str(error)]
    for name in names:
        try:
            values.add(read_secret(root, name) or "")
        except (OSError, UnicodeDecodeError) as error:
            unread.append(f"{name} ({error})")
    return values, unread

"""``ffdl cache``: the entries of the user in this node's cache, and how much all users hold."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.commands.config import settings_or_stop
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_line, print_table
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.number_text import counted, size_text
from ffdl_batch.exit_handling import Stop, complain
from ffdl_batch.host.fast_dataclass import dataclass

if TYPE_CHECKING:
    from ffdl_batch.staging.cache.capacity import CachedEntry
    from ffdl_batch.staging.cache.user_cache import Shelf

_SHORT = 12


@dataclass(frozen=True, slots=True)
class Place:
    """The configured cache."""

    directory: str
    limit_bytes: int
    shelf: Shelf | None
    """The user's part of it; None if the user has none there yet."""


@click.group(invoke_without_command=True)
@json_option()
@click.pass_context
def cache(context: click.Context, as_json: bool) -> None:
    """Show the cache of data sets on this machine: your entries, and how much all users hold.

    If the cache is in a directory of its own on each node, run the command there: `srun -w NODE ffdl cache`.
    """
    if context.invoked_subcommand is None:
        _show(_place(), as_json)


@cache.command("list")
@json_option()
def list_entries(as_json: bool) -> None:
    """Do the same as `ffdl cache`."""
    _show(_place(), as_json)


@cache.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "all_of_them", is_flag=True, help="Remove all of your entries.")
def rm(keys: Sequence[str], all_of_them: bool) -> None:
    """Remove your entries. KEY may be the beginning of a key. Entries that a job uses are kept (exit code 75)."""
    from ffdl_batch.staging.cache.capacity import discard, publish_usage
    from ffdl_batch.staging.cache.user_cache import locked

    if bool(keys) is all_of_them:
        raise Stop(ExitCode.USAGE, "name the keys of entries, or give --all")
    place = _place()
    stays = []
    for seen in _chosen(place, keys):
        assert place.shelf is not None
        if discard(place.shelf, seen.key):
            click.echo(f"{seen.key[:_SHORT]} removed")
        else:
            stays.append(seen.key[:_SHORT])
    if place.shelf is not None:
        with locked(place.shelf.mutex):
            publish_usage(place.shelf)
    if stays:
        raise Stop(ExitCode.TRY_AGAIN, f"in use, and not removed: {', '.join(stays)}")


@cache.command()
@click.argument("keys", nargs=-1, metavar="[KEY]...")
def verify(keys: Sequence[str]) -> int:
    """Check your entries, or the named ones, against their digests. Damaged entries are removed (exit code 1)."""
    from ffdl_batch.staging.cache.capacity import discard
    from ffdl_batch.staging.cache.entry import Damaged, check, note_checked, read_entry

    place, damaged = _place(), 0
    for seen in _chosen(place, keys):
        assert place.shelf is not None
        directory = place.shelf.entry(seen.key)
        try:
            read_entry(directory)
            check(directory, wholly=True, go_on=lambda _size: None)
        except Damaged as why:
            damaged += 1
            end = "removed" if discard(place.shelf, seen.key) else "not removed, because a job uses it"
            click.echo(f"{seen.key[:_SHORT]} damaged: {why}; {end}")
        else:
            note_checked(directory)
            click.echo(f"{seen.key[:_SHORT]} ok")
    return ExitCode.FAILED if damaged else ExitCode.OK


def _place() -> Place:
    from ffdl_batch.staging.cache.user_cache import Unusable, existing_shelf

    settings = settings_or_stop()
    directory, host = settings.cache_dir, os.uname().nodename
    if not directory:
        raise Stop(ExitCode.UNAVAILABLE, "no cache is configured; set cache_dir in the configuration")
    if not os.path.isdir(directory):  # noqa: PTH112
        raise Stop(
            ExitCode.UNAVAILABLE,
            f"there is no directory {directory} on {host}; if the cache is on the compute nodes, run: srun -w NODE "
            "ffdl cache",
        )
    try:
        return Place(directory, settings.cache_bytes, existing_shelf(directory, os.geteuid()))
    except Unusable as error:
        raise Stop(ExitCode.NOT_ALLOWED, str(error)) from None


def _entries(place: Place) -> list[CachedEntry]:
    from ffdl_batch.staging.cache.capacity import entries

    return sorted(entries(place.shelf), key=lambda seen: -seen.used_at) if place.shelf else []


def _chosen(place: Place, keys: Sequence[str]) -> list[CachedEntry]:
    """Return the named entries, or all if none is named. Raises Stop for a key that names none or several."""
    found = _entries(place)
    if not keys:
        return found
    chosen = []
    for key in keys:
        fitting = [seen for seen in found if seen.key.startswith(key)]
        if len(fitting) != 1:
            what = f"{len(fitting)} entries begin" if fitting else "no entry of yours begins"
            raise Stop(ExitCode.NO_INPUT, f"{what} with {key}")
        chosen += fitting
    return chosen


def _show(place: Place, as_json: bool) -> None:
    from ffdl_batch.staging.cache.capacity import most_of
    from ffdl_batch.staging.cache.user_cache import usages

    found, host = _entries(place), os.uname().nodename
    known, uid = dict(usages(place.directory)), os.geteuid()
    held = {user: usage.bytes for user, usage in known.items()}
    mine = sum(seen.room for seen in found)
    held[uid] = max(mine, held.get(uid, 0))
    limit = most_of(place.directory, place.limit_bytes, sum(held.values()))
    users = sum(1 for user, size in held.items() if size or user == uid or known[user].wanted)
    share = limit // users
    wanted = {user: usage.wanted for user, usage in known.items() if usage.wanted}
    own_wanted = wanted.pop(uid, 0)
    if as_json:
        print_json(
            {
                "host": host,
                "directory": place.directory,
                "limit_bytes": limit,
                "held_bytes": sum(held.values()),
                "users": users,
                "share_bytes": share,
                "own_bytes": mine,
                "own_wanted_bytes": own_wanted,
                "others_wanted_bytes": sum(wanted.values()),
                "entries": [_plain(seen) for seen in found],
            }
        )
        return
    print_table(
        ("KEY", "SIZE", "FILES", "LAST USED", "IN USE", "SOURCE"),
        [
            (
                seen.key[:_SHORT],
                size_text(seen.entry.bytes) if seen.entry else "-",
                str(seen.entry.files) if seen.entry else "-",
                format_time(seen.used_at or None),
                "no" if seen.free else "yes",
                seen.entry.source if seen.entry else "damaged; filled again when a job needs it",
            )
            for seen in found
        ],
    )
    print_line("Cache", f"{place.directory} on {host}")
    print_line("Yours", f"{size_text(mine)}; an equal share is {size_text(share)}")
    print_line("All", f"{size_text(sum(held.values()))} of {size_text(limit)}, {counted(users, 'user')}")
    if own_wanted:
        print_line("Wanted", f"{size_text(own_wanted)} for one of your jobs, which ran without the cache")
    if wanted:
        size = size_text(sum(wanted.values()))
        print_line("Wanted", f"{size} by other users; users who hold more than an equal share give it back")
    if limit < (place.limit_bytes or 0):
        complain(f"warning: cache_bytes is {size_text(place.limit_bytes)}, but the file system has less space")


def _plain(seen: CachedEntry) -> dict[str, object]:
    entry = seen.entry
    return {
        "key": seen.key,
        "source": entry.source if entry else "",
        "files": entry.files if entry else 0,
        "bytes": entry.bytes if entry else 0,
        "filled_at": entry.filled_at if entry else 0,
        "filled_by": entry.filled_by if entry else "",
        "used_at": seen.used_at,
        "in_use": not seen.free,
        "damaged": entry is None,
    }

"""``ffdl scaler``: pools of GPUs that elastic jobs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ffdl_batch.cli.connection import open_client
from ffdl_batch.cli.options.output import json_option
from ffdl_batch.cli.render.formatting import format_time, print_json, print_line, print_table
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.quantity import format_time_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ffdl_batch.domain.job.pool_views import PoolView, SizeExplanation


@click.group()
def scaler() -> None:
    """Manage pools of GPUs that elastic jobs share."""


@scaler.command()
@json_option()
def status(*, as_json: bool) -> None:
    """Show the pools and the sizes of their jobs."""
    with open_client() as client:
        pools = client.pools.status()
    if as_json:
        print_json({"pools": pools})
    elif not pools:
        click.echo("no pool is configured; add [elastic.pools.NAME] to the configuration")
    else:
        _print_pools(pools)


@scaler.command()
@click.argument("job_id", metavar="ID")
@json_option()
def explain(job_id: str, *, as_json: bool) -> None:
    """Show why a job has its size.

    The output has the sizes that the last decision about this job compared.
    """
    with open_client() as client:
        found = client.pools.explain(job_id)
    if as_json:
        print_json({"size": found})
    else:
        _print_explanation(found)


@scaler.command()
@click.argument("pool")
def pause(pool: str) -> None:
    """Stop decisions about a pool.

    Running jobs keep their sizes. Waiting jobs start with their last or submitted size. A change of size in progress is
    finished.
    """
    with open_client() as client:
        client.pools.pause(pool)
    click.echo(f"pool {pool} is paused; to continue: ffdl scaler resume {pool}")


@scaler.command()
@click.argument("pool")
def resume(pool: str) -> None:
    """Continue decisions about a pool."""
    with open_client() as client:
        client.pools.resume(pool)
    click.echo(f"pool {pool} is active")


@scaler.command()
@click.argument("pool", required=False)
@json_option()
def replay(pool: str | None, *, as_json: bool) -> int:
    """Recompute recorded decisions from their stored inputs. Exit with status 1 if a result differs.

    POOL is the name of a pool. Default: all pools.
    """
    with open_client() as client:
        decisions = client.pools.replay(pool)
    different = [one for one in decisions if one.differences]
    if as_json:
        print_json({"decisions": decisions})
        return int(bool(different))
    for one in different:
        for sentence in one.differences:
            click.echo(f"pool {one.pool}, {format_time(one.at)}: {sentence}")
    differ = "none differs" if not different else f"{counted(len(different), 'decision')} with a different result"
    click.echo(f"{counted(len(decisions), 'decision')} replayed, {differ}")
    return int(bool(different))


_COLUMNS = ("ID", "NAME", "STATE", "LEARNERS", "GPUS", "BATCH", "TARGET", "REASON")


def _print_pools(pools: Sequence[PoolView]) -> None:
    for number, pool in enumerate(pools):
        if number:
            click.echo()
        print_line("Pool", pool.name)
        print_line("GPUs", f"{pool.used_gpus} of {pool.gpus} in use or requested")
        print_line("Backend", pool.backend + (f", partition {pool.partition}" if pool.partition else ""))
        print_line("Objective", pool.objective)
        print_line("Problem", pool.problem)
        print_line("Paused", f"since {format_time(pool.paused_at)}" if pool.paused_at is not None else "")
        print_line("Last decision", format_time(pool.decided_at) if pool.decided_at is not None else "")
        print_line("Next decision", format_time(pool.next_at) if pool.next_at is not None else "")
        if pool.jobs:
            rows = [
                (one.id, one.name, one.state, str(one.learners), str(one.gpus), str(one.global_batch),
                 str(one.wanted_gpus), one.reason)
                for one in pool.jobs
            ]  # fmt: skip
            print_table(_COLUMNS, rows)


def _print_explanation(found: SizeExplanation) -> None:
    size = f"{counted(found.gpus, 'GPU')}, batch {found.global_batch}" if found.gpus else "waiting"
    wanted = f"{counted(found.wanted_gpus, 'GPU')}, batch {found.wanted_batch}" if found.wanted_gpus else "waiting"
    print_line("Job", found.id)
    print_line("Pool", f"{found.pool}, {counted(found.pool_gpus, 'GPU')} for {counted(found.pool_jobs, 'job')}")
    older = "" if found.is_newest else " (the last decision that compared sizes of this job; newer ones did not)"
    print_line("Decided", format_time(found.decided_at) + older)
    print_line("Before", size)
    print_line("After", wanted)
    is_kept = not found.hold and (found.gpus, found.global_batch) == (found.wanted_gpus, found.wanted_batch) != (0, 0)
    print_line("Held", found.hold)
    print_line("Kept", "because no other size gains more than a change costs" if is_kept else "")
    print_line("Limited", found.limit)
    print_line("Remaining", _duration(found.remaining_s) if found.remaining_s is not None else "")
    print_line("Restart cost", f"{found.restart_s:.0f} s")
    print_line("Rank", f"{found.rank} of {found.pool_jobs} (1 is the longest job)")
    sizes = {(one.gpus, one.global_batch): one.remaining_s for one in found.options}
    now = (found.gpus, found.global_batch)
    if found.remaining_s is not None:
        sizes.setdefault(now, found.remaining_s)
    rows = [
        (str(gpus), f"{batch} (now)" if (gpus, batch) == now else str(batch), _duration(remaining_s))
        for (gpus, batch), remaining_s in sorted(sizes.items())
    ]
    print_table(("GPUS", "BATCH", "REMAINING"), rows)


def _duration(seconds: float) -> str:
    return format_time_limit(max(1, round(seconds)))

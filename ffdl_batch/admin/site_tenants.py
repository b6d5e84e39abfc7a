"""Implement the commands for operators of a site: ``ffdl-admin tenant``, ``member``, ``quota`` and ``emergency``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from ffdl_batch.admin.tenant import tenant
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import json_text, printable
from ffdl_batch.exit_handling import Stop
from ffdl_batch.option_types import Number

__all__ = ["emergency", "member", "quota", "tenant"]
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_MEMBER = click.option("--user", metavar="NAME", help="Member to limit.  [default: the whole tenant]")
_EACH = click.option("--each", is_flag=True, help="Limit each member who has no individual limit.")
_ONE_USER = click.option("--user", metavar="NAME", help="Only submissions of this user.")
_WHY = click.option("--why", default="", metavar="TEXT", help="The reason, for users and for `emergency list`.")
_ONE_TENANT = click.option("--tenant", "of_tenant", metavar="NAME", help="Only submissions of this tenant.")


@tenant.command()
@click.argument("name")
@click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="NAME",
    help="A Slurm account of the tenant; can be repeated. The given accounts replace the existing ones.",
)
@click.option(
    "--weight", type=Number(0), metavar="N", help="Weight relative to other tenants.  [default: 1 if it is new]"
)
def add(name: str, accounts: Sequence[str], weight: float | None) -> None:
    """Add the tenant NAME to this site, or change its accounts or its weight.

    Its members choose it with --account, if they are members of several tenants.
    """
    _ask("PUT", f"/tenants/{name}", {"weight": weight, "accounts": list(accounts) or None})


@tenant.command("list")
@_JSON
def list_tenants(as_json: bool) -> None:
    """List the tenants of this site: accounts, members, and quotas with their present use."""
    tenants = _ask("GET", "/tenants")["tenants"]
    if as_json:
        click.echo(json_text({"schema": 1, "tenants": tenants}, indent=2))
        return
    for one in tenants:
        click.echo(f"{one['name']}  weight {one['weight']:g}")
        click.echo(f"  accounts  {', '.join(one['accounts']) or '-'}")
        click.echo(f"  members   {', '.join(one['members']) or '-'}")
        for limit in one["quotas"]:
            used = "" if limit["used"] is None else f", in use {limit['used']:g}"
            click.echo(f"  quota     {limit['resource']} {limit['amount']:g} for {_whose(limit['member'])}{used}")


@tenant.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the tenant NAME with its quotas. It must have no live jobs."""
    _ask("DELETE", f"/tenants/{name}")


@tenant.command()
@click.option("--print", "as_text", is_flag=True, help="Print the commands; ffdl does not change Slurm's database.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def slurm(names: Sequence[str], as_text: bool) -> None:
    """Print sacctmgr commands that set the quotas as association limits, so that they also apply to sbatch.

    Each account gets the full limit of its tenant. Limits of members become limits of their user associations. Nothing
    is printed for a tenant without accounts. GPU-hours quotas are not printed: GrpTRESMins decays or resets for the
    whole cluster, not per quota.
    """
    if not as_text:
        raise click.UsageError("this command only prints; add --print, and have a Slurm administrator run the output")
    tenants = {one["name"]: one for one in _ask("GET", "/tenants")["tenants"]}
    if missing := [name for name in names if name not in tenants]:
        raise Stop(ExitCode.FAILED, f"there is no tenant {missing[0]!r}; `ffdl-admin tenant list` shows all")
    for name in names or tenants:
        for line in sacctmgr_lines(tenants[name]):
            click.echo(line)


@click.group()
def member() -> None:
    """Manage the members of this site's tenants, as an operator on the hub's host."""


@member.command("add")
@click.argument("name", metavar="TENANT")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
def add_members(name: str, users: Sequence[str]) -> None:
    """Add users to a tenant."""
    for user in users:
        _ask("PUT", f"/tenants/{name}/members/{user}")


@member.command("remove")
@click.argument("name", metavar="TENANT")
@click.argument("users", nargs=-1, required=True, metavar="USER...")
def remove_members(name: str, users: Sequence[str]) -> None:
    """Remove users and their individual quotas from a tenant. Their admitted jobs continue."""
    for user in users:
        _ask("DELETE", f"/tenants/{name}/members/{user}")


@click.group()
def quota() -> None:
    """Manage the quotas of this site's tenants, as an operator on the hub's host.

    A quota limits what live jobs use at any time: `jobs`, `gpus`, or `gpus:TYPE`; or what all jobs use in a period:
    `gpu-hours/day`, `gpu-hours/week` or `gpu-hours/month`. `ffdl-admin tenant list` shows them.
    """


@quota.command("set")
@click.argument("name", metavar="TENANT")
@click.argument("resource")
@click.argument("amount", type=Number(0))
@_MEMBER
@_EACH
def set_quota(name: str, resource: str, amount: float, user: str | None, each: bool) -> None:
    """Limit RESOURCE of a tenant, or of members of it, to AMOUNT. Admitted jobs continue."""
    _ask("PUT", f"/tenants/{name}/quotas/{resource}", {"member": _member_of(user, each), "amount": amount})


@quota.command("remove")
@click.argument("name", metavar="TENANT")
@click.argument("resource")
@_MEMBER
@_EACH
def remove_quota(name: str, resource: str, user: str | None, each: bool) -> None:
    """Remove the limit of RESOURCE."""
    _ask("DELETE", f"/tenants/{name}/quotas/{resource}", {"member": _member_of(user, each)})


@click.group()
def emergency() -> None:
    """Stop users, or the whole service, in an emergency, as an operator on the hub's host.

    Each command takes effect at once and can be undone. Jobs that the hub has already admitted continue.
    """


@emergency.command()
@_ONE_USER
@_ONE_TENANT
@_WHY
def stop(user: str | None, of_tenant: str | None, why: str) -> None:
    """Stop the submissions of the site, of a user or of a tenant. New jobs wait, and show the reason."""
    _ask("PUT", f"/levers/{_subject(user, of_tenant)}", {"why": why})


@emergency.command("revoke-tokens")
@_WHY
def revoke_tokens(why: str) -> None:
    """Revoke all existing tokens. Users can log in again."""
    _ask("PUT", "/levers/tokens", {"why": why})


@emergency.command()
@_WHY
def drain(why: str) -> None:
    """Stop all submissions, and refuse changes sent through the hub. Read-only commands still work."""
    _ask("PUT", "/levers/service", {"why": why})


@emergency.command()
@click.argument("what", type=click.Choice(("stop", "revoke-tokens", "drain")))
@_ONE_USER
@_ONE_TENANT
def undo(what: str, user: str | None, of_tenant: str | None) -> None:
    """Undo a previous emergency command. Revoked tokens become valid again, unless they have expired."""
    if what != "stop" and (user or of_tenant):
        raise click.UsageError("--user and --tenant are valid only for `undo stop`")
    kinds = {"revoke-tokens": "tokens", "drain": "service"}
    _ask("DELETE", f"/levers/{kinds.get(what) or _subject(user, of_tenant)}")


@emergency.command("list")
@_JSON
def list_levers(as_json: bool) -> None:
    """List active stops with their time, operator and reason."""
    levers = _ask("GET", "/levers")["levers"]
    if as_json:
        click.echo(json_text({"schema": 1, "levers": levers}, indent=2))
        return
    for one in levers:
        click.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(one['set_at']))}  {printable(one['sentence'])}")


def sacctmgr_lines(one: Mapping[str, Any]) -> Iterable[str]:
    """Yield the commands for a tenant as the hub describes it. Limits of associations are those of sacctmgr(1)."""
    for account in one["accounts"]:
        limits = (f"Fairshare={one['weight']:g}", *_limits(one["quotas"], ""))
        yield f"sacctmgr -i modify account name={account} set {' '.join(limits)}"
        for user in one["members"]:
            own = {limit["resource"] for limit in one["quotas"] if limit["member"] == user}
            for_each = [limit for limit in one["quotas"] if limit["member"] == "*" and limit["resource"] not in own]
            if limits := (*_limits(one["quotas"], user), *_limits(for_each, "*")):
                yield f"sacctmgr -i modify user name={user} account={account} set {' '.join(limits)}"


def _limits(quotas: Sequence[Mapping[str, Any]], whose: str) -> tuple[str, ...]:
    own = (limit for limit in quotas if limit["member"] == whose)
    amounts = {one["resource"]: one["amount"] for one in own if not one["resource"].startswith("gpu-hours/")}
    jobs = amounts.pop("jobs", None)
    gpus = ",".join(
        f"gres/gpu{resource.removeprefix('gpus')}={amount:g}" for resource, amount in sorted(amounts.items())
    )
    return (*((f"GrpTRES={gpus}",) if gpus else ()), *((f"GrpSubmitJobs={jobs:g}",) if jobs is not None else ()))


def _whose(name: str) -> str:
    return {"": "the tenant", "*": "each member"}.get(name, name)


def _member_of(user: str | None, each: bool) -> str:
    if user and each:
        raise click.UsageError("--user and --each are mutually exclusive")
    return "*" if each else user or ""


def _subject(user: str | None, of_tenant: str | None) -> str:
    if user and of_tenant:
        raise click.UsageError("--user and --tenant are mutually exclusive")
    if user or of_tenant:
        return f"user/{user}" if user else f"tenant/{of_tenant}"
    return "site"


def _ask(method: str, path: str, plain: Mapping[str, object] | None = None) -> Mapping[str, Any]:
    """Return the hub's answer. A refusal ends the command with 1, or 77 if the caller is no operator."""
    from ffdl_batch.services.hub import HubRefused, HubUnavailable, hub_here

    try:
        return hub_here(os.environ).manage(method, path, plain)
    except HubRefused as error:
        code = ExitCode.NOT_ALLOWED if error.status == 403 else ExitCode.FAILED
        raise Stop(code, str(error)) from error
    except HubUnavailable as error:
        raise Stop(ExitCode.UNAVAILABLE, str(error)) from error

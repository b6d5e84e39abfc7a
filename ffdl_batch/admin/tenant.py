"""Implement ``ffdl-admin tenant``: create tenants on a shared cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.exit_handling import Stop
from ffdl_batch.host.users import user_name
from ffdl_batch.option_types import Number, WholeNumber

if TYPE_CHECKING:
    from ffdl_batch.domain.tenant import Tenant
    from ffdl_batch.ports.capabilities import KeepsTenants

T = TypeVar("T")
_BACKEND = click.option(
    "--backend", default="kubernetes", show_default=True, metavar="NAME", help="The backend of the cluster."
)
_WHO = (
    click.option("--user", "users", multiple=True, metavar="NAME", help="A user who may submit; can be repeated."),
    click.option("--group", "groups", multiple=True, metavar="NAME", help="A group that may submit; can be repeated."),
    click.option(
        "--service-account",
        metavar="NAMESPACE/NAME",
        help="Service account of a daemon in the cluster.",
    ),
    click.option(
        "--hub-user",
        metavar="NAME",
        help="Kubernetes user name of the site's hub. Creates a service account for the tenant's daemon and lets the "
        "hub request its tokens.",
    ),
    click.option("--nodes", is_flag=True, help="Let ffdl why list the nodes of the cluster."),
    click.option("--debugging", is_flag=True, help="Let users run commands in learners: ffdl exec and ffdl shell."),
)


def _with_who(command: Any) -> Any:
    for option in reversed(_WHO):
        command = option(command)
    return command


@click.group()
def tenant() -> None:
    """Manage tenants: those of a site share quotas; those of a Kubernetes cluster have a namespace each.

    `add`, `list`, `remove` and `slurm` are for operators, on the hub's host. `create` and `permissions` need no hub.
    """


@tenant.command()
@click.argument("name")
@_BACKEND
@click.option("--cpus", "--cpu", type=Number(0), metavar="N", help="Limit of CPUs, over all its pods.")
@click.option("--memory", metavar="SIZE", help="Limit of memory, over all its pods, such as 64Gi.")
@click.option("--gpus", type=WholeNumber(0), metavar="N", help="Limit of GPUs, over all its pods.")
@click.option("--storage", metavar="SIZE", help="Limit of storage, over all its volume claims.")
@click.option("--jobs", type=WholeNumber(0), metavar="N", help="Maximum number of existing jobs.")
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME=N",
    help="Another limit, such as nvidia.com/mig-1g.10gb=4.",
)
@_with_who
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the namespace.")
@click.option("--adopt", is_flag=True, help="Accept an existing namespace without ffdl's label.")
@click.option("--update", is_flag=True, help="Change objects that differ, and add missing ones.")
@click.option("--remove", is_flag=True, help="With --update, remove limits, users and permissions that are not named.")
@click.option("--print", "as_yaml", is_flag=True, help="Print YAML without a cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(name: str, *, backend: str, as_yaml: bool, as_json: bool, **options: Any) -> int:
    """Create the tenant NAME: on Kubernetes a namespace of the Pod Security level restricted, a quota, limits
    of containers, a network policy that denies all, a service account without a token, and the role of daemons.

    Existing objects are not changed. Differences are reported, and applied with --update. Limits, users and permissions
    that you do not name are kept, unless you also give --remove. A namespace without ffdl's label is changed only with
    --adopt.

    Exit code 0: everything exists as requested; 1: something differs, or the namespace has no label of ffdl; 2: NAME or
    a value is invalid; 69: the backend has no tenants, or there is no kubeconfig; 75: the cluster does not answer;
    77: the cluster does not permit it; 78: the configuration cannot be used.
    """
    from ffdl_batch.domain.tenant import Done

    keeper, wanted = _keeper(backend), _tenant(name, options)
    if as_yaml:
        _print_yaml(_asked(lambda: keeper.tenant_objects(wanted)))
        return ExitCode.OK
    manner = {word: options[word] for word in ("adopt", "update", "remove")}
    steps = _asked(lambda: keeper.create_tenant(wanted, **manner))
    advice = keeper.advise(wanted)
    if as_json:
        rows = [asdict(step) for step in steps]
        click.echo(json_text({"schema": 1, "tenant": name, "steps": rows, "settings": dict(advice)}, indent=2))
    else:
        for step in steps:
            click.echo(f"{step.done:<8} {step.about}{': ' if step.text else ''}{step.text}")
        said = ", ".join(f'{key} = "{value}"' for key, value in advice.items())
        click.echo(f"Its users set in [backend.{backend}]: {said}", err=True)
        is_new = any(step.done is Done.MADE for step in steps[:1])  # the namespace itself
        if is_new and not (wanted.users or wanted.groups or wanted.service_account or wanted.hub_user):
            who = "name users with --update and --user, --group or --service-account"
            click.echo(f"No user may submit there yet: {who}", err=True)
    differs = any(step.done is Done.DIFFERS for step in steps)
    if differs and not as_json:
        click.echo("Differing objects were not changed; --update changes them", err=True)
    return ExitCode.FAILED if differs else ExitCode.OK


@tenant.command()
@click.argument("name")
@_BACKEND
@_with_who
def permissions(name: str, *, backend: str, **options: Any) -> int:
    """Print as YAML the permissions that a daemon needs in the namespace NAME.

    Use it if another administrator creates the namespace.
    """
    keeper, wanted = _keeper(backend), _tenant(name, options)
    _print_yaml(_asked(lambda: keeper.permissions(wanted)))
    return ExitCode.OK


def _keeper(name: str) -> KeepsTenants:
    from ffdl_batch.config import ConfigError, load_settings
    from ffdl_batch.domain.scheduler_errors import InvalidRequest
    from ffdl_batch.plugins import AdapterContext, create_adapter
    from ffdl_batch.ports.capabilities import KeepsTenants

    try:
        settings, uid = load_settings(), os.getuid()
        context = AdapterContext(settings.jobs_dir, user_name(uid), uid)
        found = create_adapter(name, settings.backend_settings(name), context, settings.backend_origins(name))
    except (ConfigError, InvalidRequest) as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from error
    if not isinstance(found, KeepsTenants):
        raise Stop(ExitCode.UNAVAILABLE, f"the backend {name!r} has no tenants")
    return found


def _tenant(name: str, options: Mapping[str, Any]) -> Tenant:
    from ffdl_batch.domain.tenant import Tenant

    account = options["service_account"]
    if account is not None and not account:
        raise Stop(ExitCode.USAGE, "--service-account: the value is empty; write namespace/name")
    return Tenant(
        name,
        gpus=options.get("gpus"),
        cpus=options.get("cpus"),
        memory_bytes=_size("--memory", options.get("memory")),
        storage_bytes=_size("--storage", options.get("storage")),
        jobs=options.get("jobs"),
        users=tuple(dict.fromkeys(options["users"])),
        groups=tuple(dict.fromkeys(options["groups"])),
        service_account=account or "",
        hub_user=options["hub_user"] or "",
        resources=_pairs("--resource", options.get("resources", ())),
        labels=_pairs("--label", options.get("labels", ())),
        debugging=options["debugging"],
        nodes=options["nodes"],
    )


def _size(option: str, text: str | None) -> int | None:
    from ffdl_batch.domain.quantity import parse_size

    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise Stop(ExitCode.USAGE, f"{option}: {error}") from error


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise Stop(ExitCode.USAGE, f"{option}: {text!r}: write name=value")
        if name in found:
            raise Stop(ExitCode.USAGE, f"{option}: {name} is given twice; give it once")
        found[name] = value
    return found


def _asked(ask: Callable[[], T]) -> T:
    """Return the reply of the backend; its errors end the command."""
    from ffdl_batch.domain.scheduler_errors import (
        InvalidRequest,
        NotOurs,
        NotPermitted,
        SchedulerError,
        SchedulerMissing,
    )

    try:
        return ask()
    except InvalidRequest as error:
        raise Stop(ExitCode.USAGE, str(error)) from error
    except SchedulerMissing as error:
        raise Stop(ExitCode.UNAVAILABLE, str(error)) from error
    except NotPermitted as error:
        raise Stop(ExitCode.NOT_ALLOWED, str(error)) from error
    except NotOurs as error:
        raise Stop(ExitCode.FAILED, str(error)) from error
    except SchedulerError as error:
        raise Stop(ExitCode.TRY_AGAIN, str(error)) from error


def _print_yaml(objects: Sequence[Mapping[str, Any]]) -> None:
    import yaml

    for one in objects:
        click.echo("---\n" + yaml.dump(dict(one), Dumper=_dumper(), sort_keys=False), nl=False)


def _dumper() -> Any:
    """Return a dumper that writes no anchors."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (PyYAML's signature)
            return True

    return Plain

"""``ffdl-admin tenant``: rooms for tenants on a cluster that many share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ffdl_batch.admin.exit_handling import Stop
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.host.users import user_name

if TYPE_CHECKING:
    from ffdl_batch.ports.tenancy import KeepsTenants, Tenant

T = TypeVar("T")
_NAMES = {"help_option_names": ["-h", "--help"]}
_BACKEND = click.option(
    "--backend", default="kubernetes", show_default=True, metavar="NAME", help="The backend whose cluster it is."
)
_WHO = (
    click.option("--user", "users", multiple=True, metavar="NAME", help="Who may submit; may be given again."),
    click.option("--group", "groups", multiple=True, metavar="NAME", help="A group whose members may submit."),
    click.option(
        "--service-account", default="", metavar="NAMESPACE/NAME", help="That of a daemon that runs in the cluster."
    ),
    click.option("--nodes", is_flag=True, help="Let ffdl why list the nodes of the cluster."),
    click.option("--debugging", is_flag=True, help="They may run commands in learners: ffdl exec and ffdl shell."),
)


def _with_who(command: Any) -> Any:
    for option in reversed(_WHO):
        command = option(command)
    return command


@click.group(context_settings=_NAMES)
def tenant() -> None:
    """Tenants of a cluster: a room each, with limits, and who may use it."""


@tenant.command(context_settings=_NAMES)
@click.argument("name")
@_BACKEND
@click.option("--cpus", "--cpu", type=click.FloatRange(min=0), metavar="N", help="CPUs of all its pods together.")
@click.option("--memory", default="", metavar="SIZE", help="Memory of all its pods together, as 64Gi.")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of all its pods together.")
@click.option("--storage", default="", metavar="SIZE", help="Sizes of its volume claims together.")
@click.option("--jobs", type=click.IntRange(min=0), metavar="N", help="Jobs that are there at a time.")
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME=N", help="Another resource, as nvidia.com/mig-1g.10gb=4."
)
@_with_who
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the room.")
@click.option("--adopt", is_flag=True, help="Also where a room of that name is there and not ours.")
@click.option("--update", is_flag=True, help="Change objects that differ, and add missing ones.")
@click.option("--remove", is_flag=True, help="With --update, remove limits, users and permissions that are not named.")
@click.option("--print", "as_yaml", is_flag=True, help="Print YAML, and ask no cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(name: str, *, backend: str, as_yaml: bool, as_json: bool, **wish: Any) -> int:
    """Make a room for the tenant NAME: on Kubernetes a namespace of the Pod Security level restricted, a quota, limits
    of containers, a network policy that denies all, a service account without a token, and the role of daemons.

    Existing objects are not changed. Differences are reported, and applied with --update. Limits, users and permissions
    that you do not name are kept, unless you also give --remove. A namespace without ffdl's label is changed only with
    --adopt.

    Exit code 0: all is there as wanted; 1: something differs, or the room is not ours; 2: NAME or an amount is none;
    69: the backend has no tenants, or what the cluster is asked with (a kubeconfig) is not there; 75: the cluster does
    not answer; 77: the cluster does not let you, as it says; 78: the configuration cannot be used.
    """
    from ffdl_batch.ports.tenancy import Done

    keeper, wanted = _keeper(backend), _tenant(name, wish)
    if as_yaml:
        _print_yaml(_asked(lambda: keeper.tenant_objects(wanted)))
        return ExitCode.OK
    manner = {word: wish[word] for word in ("adopt", "update", "remove")}
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
        is_new = any(step.done is Done.MADE for step in steps[:1])  # the room itself
        if is_new and not (wanted.users or wanted.groups or wanted.service_account):
            who = "--user, --group or --service-account, with --update, says who"
            click.echo(f"Nobody may submit there yet: {who}", err=True)
    differs = any(step.done is Done.DIFFERS for step in steps)
    if differs and not as_json:
        click.echo("What differs was left alone; --update changes it", err=True)
    return ExitCode.FAILED if differs else ExitCode.OK


@tenant.command(context_settings=_NAMES)
@click.argument("name")
@_BACKEND
@_with_who
def permissions(name: str, *, backend: str, **wish: Any) -> int:
    """Print as YAML what a daemon must be allowed in the room NAME, and no more.

    It is for a room that somebody else makes.
    """
    keeper, wanted = _keeper(backend), _tenant(name, wish)
    _print_yaml(_asked(lambda: keeper.permissions(wanted)))
    return ExitCode.OK


def _keeper(name: str) -> KeepsTenants:
    from ffdl_batch.config import ConfigError, load_settings
    from ffdl_batch.plugins import AdapterContext, create_adapter
    from ffdl_batch.ports.scheduler import InvalidRequest
    from ffdl_batch.ports.tenancy import KeepsTenants

    try:
        settings, uid = load_settings(), os.getuid()
        context = AdapterContext(settings.jobs_dir, user_name(uid), uid)
        found = create_adapter(name, settings.backend_settings(name), context, settings.backend_origins(name))
    except (ConfigError, InvalidRequest) as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"the configuration cannot be used: {error}") from error
    if not isinstance(found, KeepsTenants):
        raise Stop(ExitCode.UNAVAILABLE, f"the backend {name!r} has no tenants")
    return found


def _tenant(name: str, wish: Mapping[str, Any]) -> Tenant:
    from ffdl_batch.ports.tenancy import Tenant

    return Tenant(
        name,
        gpus=wish.get("gpus"),
        cpus=wish.get("cpus"),
        memory_bytes=_size("--memory", wish.get("memory", "")),
        storage_bytes=_size("--storage", wish.get("storage", "")),
        jobs=wish.get("jobs"),
        users=tuple(wish["users"]),
        groups=tuple(wish["groups"]),
        service_account=wish["service_account"],
        resources=_pairs("--resource", wish.get("resources", ())),
        labels=_pairs("--label", wish.get("labels", ())),
        debugging=wish["debugging"],
        nodes=wish["nodes"],
    )


def _size(option: str, text: str) -> int | None:
    from ffdl_batch.domain.quantity import parse_size

    if not text:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise Stop(ExitCode.USAGE, f"{option}: {error}") from error


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise Stop(ExitCode.USAGE, f"{option}: {text!r}: write name=value")
        found[name] = value
    return found


def _asked(ask: Callable[[], T]) -> T:
    """What the backend answers; its refusals end the command."""
    from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerError, SchedulerMissing
    from ffdl_batch.ports.tenancy import NotOurs, NotPermitted

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
    """Without anchors, which people would have to read."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (PyYAML's signature)
            return True

    return Plain

"""The host of --host that has no ffdl: its scheduler, our files there, and what the commands that go by them share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ffdl_batch.cli.exit_handling import Stop, complain
from ffdl_batch.domain.exit_codes import ExitCode

if TYPE_CHECKING:
    from ffdl_batch.client.errors import NoProgramThere
    from ffdl_batch.client.host_job_files import HostJobs
    from ffdl_batch.config import Settings
    from ffdl_batch.ports.remote_scheduler import SchedulerThere

WORKS = ("submit", "list", "show", "logs", "wait", "download", "cancel")


@dataclass(frozen=True, slots=True)
class Outpost:
    """The host's jobs and its scheduler, which is called `name`."""

    host: str
    name: str
    jobs: HostJobs
    scheduler: SchedulerThere
    settings: Settings


def refusal(host: str, what: str) -> Stop:
    """That `what` was asked for of a host without the program, and what can be had there."""
    return Stop(
        ExitCode.UNAVAILABLE,
        f"{what} needs ffdl_batch on {host}, which has none (install it there, or say where it is: FFDL_HOST_PROGRAM). "
        f"What goes without: {', '.join(WORKS)}",
    )


@contextmanager
def open_outpost(error: NoProgramThere, *, quiet: bool = False) -> Iterator[Outpost]:
    """It, and what its scheduler says in the commands' words. Raises `error` where there is none."""
    from ffdl_batch.cli.commands.config import settings_or_stop
    from ffdl_batch.client.connection.host_relay import connector_of
    from ffdl_batch.client.errors import DaemonUnreachable
    from ffdl_batch.client.host_job_files import HostJobs
    from ffdl_batch.ports.converters import converter_names, create_converter
    from ffdl_batch.ports.remote_scheduler import WorksThere
    from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerError

    if error.is_named:
        raise error
    settings = settings_or_stop()
    connector = connector_of(error.host, os.environ)
    try:
        for name in converter_names():
            converter = create_converter(name)
            if not isinstance(converter, WorksThere):
                continue
            scheduler = converter.open_there(error.host, connector)
            if scheduler.is_there():
                if not quiet:
                    complain(f"{error.host} has no ffdl: {name}'s own commands are used there")
                yield Outpost(error.host, name, HostJobs(error.host, connector, settings.host_dir), scheduler, settings)
                return
    except InvalidRequest as refused:
        raise Stop(ExitCode.BAD_MANIFEST, str(refused)) from refused
    except SchedulerError as failed:
        raise Stop(ExitCode.TRY_AGAIN, str(failed)) from failed
    raise DaemonUnreachable(
        f"{error.problem.message}; it has no commands of a scheduler either", error.problem.cure, ExitCode.UNAVAILABLE
    )


def image_of(outpost: Outpost, framework: object) -> str:
    """The image as the host has it. Raises Stop."""
    from dataclasses import replace

    from ffdl_batch.config.images import UnknownImage, resolve_image
    from ffdl_batch.domain.job.spec import Framework

    assert isinstance(framework, Framework)
    try:
        image = resolve_image(replace(outpost.settings, check_images=False), framework)
    except UnknownImage as unknown:
        raise Stop(
            ExitCode.BAD_MANIFEST,
            f"{unknown}. Nothing tells which images {outpost.host} has: name one by its path there, or by docker://, "
            "as framework.version of a custom framework, or in [frameworks] of the configuration here",
        ) from None
    if image.startswith("/") and not outpost.jobs.exists(image):
        raise Stop(ExitCode.BAD_MANIFEST, f"the image {image} is not on {outpost.host}; name one that is")
    return image


def values_of(
    outpost: Outpost, named: Mapping[str, str], inline: Mapping[str, str], brought: Mapping[str, str]
) -> dict[str, str]:
    """The values of batch.secrets, by variable. Raises Stop for one that is not here."""
    from ffdl_batch.domain.job.secret_references import SECRET, read_reference, why_no_value, without_line_end

    found: dict[str, str] = {}
    for variable, text in named.items():
        kind, name = read_reference(text) or ("", "")
        value = inline.get(name) if kind == SECRET else brought.get(f"{kind}:{name}")
        if value is None and kind == SECRET:
            raise refusal(outpost.host, f"batch.secrets.{variable}: ${{secret:{name}}}")
        if value is None:
            message = f"batch.secrets.{variable}: {text} cannot be read here: it is not set, not there, or no text"
            raise Stop(ExitCode.BAD_MANIFEST, message)
        found[variable] = without_line_end(value)
        if why := why_no_value(found[variable]):
            raise Stop(ExitCode.BAD_MANIFEST, f"batch.secrets.{variable}: {why}")
    return found

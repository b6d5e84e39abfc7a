"""``ffdl convert --to``: export the job of a manifest for a scheduler without ffdl, and print reports of
conversions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from ffdl_batch.domain.conversion import Conversion, Fate, Judged, Origin
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import SCHEMA
from ffdl_batch.domain.terminal_text import json_text
from ffdl_batch.exit_handling import Stop

if TYPE_CHECKING:
    from ffdl_batch.config import Settings
    from ffdl_batch.domain.job.spec import Framework, JobSpec


_LONGEST = 60


def as_text(conversion: Conversion, file: str) -> str:
    """Return a line for each part of the script, and their numbers."""
    lines = [_line(one, file) for one in conversion.judged]
    counts = Counter(one.fate for one in conversion.judged)
    lines.append(", ".join(f"{counts[fate]} {fate}" for fate in Fate))
    if conversion.wrapped:
        lines.append(f"the whole script runs unchanged: {conversion.wrapped}")
    return "\n".join(lines)


def as_json(conversion: Conversion, file: str) -> str:
    """Return a JSON document."""
    counts = Counter(one.fate for one in conversion.judged)
    document = {
        "schema": SCHEMA,
        "file": file,
        "wrapped": conversion.wrapped or None,
        "counts": {str(fate): counts[fate] for fate in Fate},
        "judged": [
            {"origin": str(one.origin), "line": one.line or None, "text": one.text, "fate": str(one.fate),
             "to": one.to or None, "reason": one.reason or None}
            for one in conversion.judged
        ],
    }  # fmt: skip
    return json_text(document)


def _line(one: Judged, file: str) -> str:
    place = f"{file}:{one.line}" if one.line else str(one.origin)
    if one.line and one.origin in (Origin.COMMAND, Origin.ENVIRONMENT):
        place = str(one.origin)
    words = " ".join(one.text.split())
    shown = words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."
    to = f" -> {one.to}" if one.to else ""
    reason = f" ({one.reason})" if one.reason else ""
    return f"{place}: {one.fate}: {shown}{to}{reason}"


def export_to(to: str, spec: JobSpec, file: str, report: str, *, err: bool) -> str | None:
    """Return the exported text, and print a report about its keys. Return None if no converter exports to `to`."""
    from ffdl_batch.cli.commands.config import settings_or_stop, unusable_table
    from ffdl_batch.domain.conversion import CannotConvert, Conversion, ExportRequest
    from ffdl_batch.domain.scheduler_errors import InvalidRequest
    from ffdl_batch.plugins import create_converter
    from ffdl_batch.ports.conversion import ExportsJobs

    try:
        converter = create_converter(to)
        if not isinstance(converter, ExportsJobs):
            return None
        settings = settings_or_stop()
        image, why = _image(settings, spec.framework, pulled=converter.pulls_images)
        try:
            exported = converter.export(ExportRequest(spec, file, image, settings.backend_settings(to)))
        except InvalidRequest as error:
            raise unusable_table(settings, to, error) from None
        if why and image in exported.text:
            click.echo(f"ffdl: warning: {why}; replace {image} in the text", err=True)
    except CannotConvert as error:
        raise Stop(ExitCode.BAD_MANIFEST, f"{file}: {error}") from None
    conversion = Conversion({}, exported.judged)
    if report != "none":
        click.echo(as_json(conversion, file) if report == "json" else as_text(conversion, file), err=err)
    return exported.text


def _image(settings: Settings, framework: Framework, *, pulled: bool) -> tuple[str, str]:
    """Return the image that the configuration has for the framework, and "". If it has none, return a name that the
    user has to replace, and the reason."""
    from ffdl_batch.config.images import UnknownImage, resolve_image, resolve_oci_image

    try:
        return resolve_oci_image(settings, framework) if pulled else resolve_image(settings, framework), ""
    except UnknownImage as error:
        name = f"{framework.name}:{framework.version}" if pulled else f"{framework.name}-{framework.version}.sif"
        return name, str(error)

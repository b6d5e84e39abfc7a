"""``--wrap``: submit or plan a command without a manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

AnyFunction = Callable[..., object]
NAME = "wrap"
"""The name of the job without --job-name, as that of sbatch --wrap."""
_IMAGE = ("custom", "python-numpy")
"""The framework of `ffdl init`."""


def image_options(use: str = "") -> Callable[[AnyFunction], AnyFunction]:
    """Declare the options for :func:`manifest_for`. `use` says when they are used."""

    def decorate(function: AnyFunction) -> AnyFunction:
        text = f"Image{use}: a SIF file, or a reference such as docker://python:3.12."
        function = click.option("--image", metavar="IMAGE", envvar="FFDL_IMAGE", help=text)(function)
        text = f"Framework{use}, instead of --image."
        return click.option("--framework", metavar="NAME:VERSION", help=text)(function)

    return decorate


def wrap_options(function: AnyFunction) -> AnyFunction:
    """Declare the options for :func:`wrapped_manifest`."""
    function = image_options(" for --wrap")(function)
    return click.option(
        "--wrap",
        metavar="COMMAND",
        help="Submit this command of bash without a manifest. MODEL is the current directory by default.",
    )(function)


def wrapped_manifest(given: Mapping[str, Any]) -> str:
    """Return the manifest for --wrap; "" without that option. Raises UsageError."""
    command = given["wrap"]
    if command is None:
        context = click.get_current_context()
        from_command_line = click.core.ParameterSource.COMMANDLINE
        if any(context.get_parameter_source(name) is from_command_line for name in ("image", "framework")):
            raise click.UsageError("--image and --framework are for --wrap; in a manifest, write framework:")
        return ""
    if not command.strip():
        raise click.UsageError("--wrap needs a command")
    return manifest_for(command, given)


def manifest_for(command: str, given: Mapping[str, Any], **more: object) -> str:
    """Return a manifest for a command in the image of the options; `more` has further keys. Raises UsageError."""
    framework, image = given["framework"], given["image"]
    name, version = _framework(framework) if framework else ("custom", _absolute(image)) if image else _IMAGE
    document = {"name": NAME, "framework": {"name": name, "version": version, "command": command}, **more}
    return json.dumps(document, ensure_ascii=False) + "\n"  # JSON is YAML


def model_of(files: Sequence[str]) -> str:
    """Return the model for --wrap: the current directory if none is given. Raises UsageError."""
    if len(files) > 1:
        raise click.UsageError("--wrap needs no manifest: ffdl-submit --wrap COMMAND [OPTIONS] [MODEL]")
    if files:
        return files[0]
    here = Path.cwd()
    if here in (Path.home(), Path(here.anchor)):
        raise click.UsageError(f"--wrap sends the current directory, and {here} is not sent as a whole; name the model")
    return "."


def _framework(text: str) -> tuple[str, str]:
    name, colon, version = text.partition(":")
    if not (name and colon and version):
        raise click.UsageError(f"--framework {text}: write NAME:VERSION, such as pytorch:2.4")
    return name, version


def _absolute(image: str) -> str:
    """Return the absolute path of an existing file, because the daemon has another directory; else `image`."""
    path = Path(image)
    return str(path.absolute()) if path.is_file() else image

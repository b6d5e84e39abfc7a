"""Types of command-line options whose errors name the value and the accepted ones.

All commands use these for numbers. :func:`describe` puts the name of the option before the error.
"""

from __future__ import annotations

from typing import Any

import click

from ffdl_batch.domain.terminal_text import quoted


class WholeNumber(click.IntRange):
    """A whole number, from `min` to `max` if they are given."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{quoted(str(value))} is not a whole number{_limits(self)}", param, ctx)


class Number(click.FloatRange):
    """A finite number, from `min` to `max` if they are given."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises BadParameter."""
        try:
            found = super().convert(value, param, ctx)
        except click.BadParameter:
            found = float("nan")
        if not abs(found) < float("inf"):
            self.fail(f"{quoted(str(value))} is not a number{_limits(self)}", param, ctx)
        return found


class TrueOrFalse(click.types.BoolParamType):
    """The value of a variable that sets a flag."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return the value. Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{quoted(str(value))} is neither true nor false", param, ctx)


class NamedPath(click.Path):
    """A path that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does. Raises BadParameter."""
        return super().convert(value, param, ctx) if value else self.fail("it is empty; name a file", param, ctx)


def describe(error: click.ClickException) -> click.ClickException:
    """Return an error about the value of an option or argument with its name first, in the form of other messages."""
    if not isinstance(error, click.BadParameter) or isinstance(error, click.MissingParameter):
        return error
    name = error.param_hint if isinstance(error.param_hint, str) else _name(error.param, error.ctx)
    message = error.message.rstrip(".")
    return click.UsageError(f"{name}: {message}" if name else message, error.ctx)


def _name(param: click.Parameter | None, ctx: click.Context | None) -> str:
    if param is None:
        return ""
    source = ctx.get_parameter_source(param.name) if ctx and param.name else None
    if source is click.core.ParameterSource.ENVIRONMENT:
        return str(param.envvar)
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


def _limits(kind: click.IntRange | click.FloatRange) -> str:
    least, most = ("" if limit is None else f"{limit}" for limit in (kind.min, kind.max))
    if not most:
        return "" if not least else f" greater than {least}" if kind.min_open else f" of {least} or more"
    if kind.min_open:
        return f" greater than {least} and at most {most}"
    return f" from {least} to {most}"

"""Collects what becomes of each option while its value is converted."""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.domain.conversion import CannotConvert, Fate, Judged
from ffdl_slurm.convert.directives import Given, usual


class Options:
    """The options that count, by name, and what becomes of each: what the table has, unless a method set it."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self._given = given
        self._reported: dict[str, tuple[Fate, str, str]] = {}

    def get(self, name: str) -> Given | None:
        """Return the option as it was given; None if it was not."""
        return self._given.get(name)

    def all(self) -> tuple[Given, ...]:
        """Return all options, in the order in which they count."""
        return tuple(self._given.values())

    def fate(self, name: str) -> Fate | None:
        """Return what becomes of the option so far; None if it was not given."""
        one = self._given.get(name)
        return self._judge(one).fate if one else None

    def text(self, name: str) -> str:
        """Return the value of the option; "" if it was not given."""
        one = self._given.get(name)
        return one.value.strip() if one else ""

    def count(self, *names: str) -> int | None:
        """Return the whole number of the first of `names` that was given. Raises CannotConvert for another text."""
        for name in names:
            one = self._given.get(name)
            if one is not None:
                return whole(one, one.value)
        return None

    def near(self, name: str, reason: str, to: str | None = None) -> None:
        """Report the option as approximated."""
        self._report(name, Fate.APPROXIMATED, reason, to)

    def drop(self, name: str, reason: str) -> None:
        """Report the option as dropped."""
        self._report(name, Fate.DROPPED, reason, "")

    def map(self, name: str, to: str, reason: str = "") -> None:
        """Report the option as mapped, to another key than that of the table."""
        self._report(name, Fate.MAPPED, reason, to)

    def judged(self) -> tuple[Judged, ...]:
        """Return what becomes of each option."""
        return tuple(self._judge(one) for one in self._given.values())

    def _report(self, name: str, fate: Fate, reason: str, to: str | None) -> None:
        one = self._given.get(name)
        if one is not None:
            self._reported[name] = fate, one.option.key if to is None else to, reason

    def _judge(self, one: Given) -> Judged:
        fate, to, reason = self._reported.get(one.option.name) or usual(one.option)
        return Judged(one.origin, one.line, one.text, fate, to, reason)


def whole(one: Given, text: str) -> int:
    """Read a whole number from 0 up. Raises CannotConvert."""
    if not (text.isascii() and text.strip().isdigit()) or len(text) > 9:
        raise CannotConvert(f"{one.text.strip()!r}: {text!r} is not a number", "write a whole number", one.line)
    return int(text)

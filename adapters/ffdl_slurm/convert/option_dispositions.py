"""What is said of each option, collected while its value is looked at."""

from __future__ import annotations

from collections.abc import Mapping

from ffdl_batch.ports.conversion import CannotConvert, Fate, Judged
from ffdl_slurm.convert.directives import Given, usual


class Options:
    """The options that count, by name, and what becomes of each: the table's word, unless another was said."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self._given = given
        self._said: dict[str, tuple[Fate, str, str]] = {}

    def get(self, name: str) -> Given | None:
        """How the option was given."""
        return self._given.get(name)

    def all(self) -> tuple[Given, ...]:
        """In the order in which they count."""
        return tuple(self._given.values())

    def fate(self, name: str) -> Fate | None:
        """What becomes of it, as far as was said; None where it was not given."""
        one = self._given.get(name)
        return self._judge(one).fate if one else None

    def text(self, name: str) -> str:
        """Its value, "" where it was not given."""
        one = self._given.get(name)
        return one.value.strip() if one else ""

    def count(self, *names: str) -> int | None:
        """The whole number of the first of `names` that was given. Raises CannotConvert for another text."""
        for name in names:
            one = self._given.get(name)
            if one is not None:
                return whole(one, one.value)
        return None

    def near(self, name: str, reason: str, to: str | None = None) -> None:
        """The option is approximated."""
        self._say(name, Fate.APPROXIMATED, reason, to)

    def drop(self, name: str, reason: str) -> None:
        """Nothing comes of the option."""
        self._say(name, Fate.DROPPED, reason, "")

    def map(self, name: str, to: str, reason: str = "") -> None:
        """The option is mapped, other than the table says."""
        self._say(name, Fate.MAPPED, reason, to)

    def judged(self) -> tuple[Judged, ...]:
        """All of them."""
        return tuple(self._judge(one) for one in self._given.values())

    def _say(self, name: str, fate: Fate, reason: str, to: str | None) -> None:
        one = self._given.get(name)
        if one is not None:
            self._said[name] = fate, one.option.key if to is None else to, reason

    def _judge(self, one: Given) -> Judged:
        fate, to, reason = self._said.get(one.option.name) or usual(one.option)
        return Judged(one.origin, one.line, one.text, fate, to, reason)


def whole(one: Given, text: str) -> int:
    """A whole number from 0 up. Raises CannotConvert."""
    if not (text.isascii() and text.strip().isdigit()) or len(text) > 9:
        raise CannotConvert(f"{one.text.strip()!r}: {text!r} is not a number", "write a whole number", one.line)
    return int(text)

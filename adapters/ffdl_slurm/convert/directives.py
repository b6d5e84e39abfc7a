"""Reads the options of sbatch from the ``#SBATCH`` lines of a script, from its command line and from the environment.

sbatch 26.05 reads lines up to the first one that is neither blank nor a comment. They begin with ``#SBATCH`` in the
first column. A ``#`` that is neither quoted nor escaped ends a line, also within a word. A backslash takes the next
letter as it is, within quotes, too. Names may be shortened if they stay unique. Anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.conversion import CannotConvert, Fate, Judged, Origin
from ffdl_batch.domain.sbatch.begin_time import LEAP_YEAR, read_begin_time
from ffdl_batch.domain.sbatch.option_table import BY_LETTER, BY_NAME, BY_VARIABLE, Form, OptionRow, Takes
from ffdl_batch.domain.sbatch.script_options import SbatchOption, check_number
from ffdl_batch.domain.sbatch.values import is_flag_set, joined, one_events
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.sbatch_script import MARK, comments_of, split_line

IMAGE = "container-image"
_PYXIS = "Pyxis is not asked: learners run in the manifest's image, and see no directory of the node"
MOUNTS = "learners see no directory of the node: name what they read and write under data_stores"
_SHIFTER = "Shifter is not asked: name the image by --image, as docker://REPOSITORY/NAME:TAG"
_VIEW = "the plugin is not asked: the image has to have this environment, or choose one that has the software: --image"
_NAMED = {
    "container-mounts": MOUNTS, "container-workdir": _PYXIS, "container-name": _PYXIS, "container-save": _PYXIS,
    "container-env": _PYXIS, "image": _SHIFTER, "module": _SHIFTER, "volume": MOUNTS, "environment": _VIEW,
    "uenv": _VIEW, "view": _VIEW, "beeond": "no file system is made for the job: --tmp asks for room on the node",
}  # fmt: skip
_FLAGS = (
    "container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root",
    "container-writable", "container-readonly", "container-entrypoint", "no-container-entrypoint",
    "no-container-entrypoint-log",
)  # fmt: skip
PLUGINS = {
    IMAGE: OptionRow(
        IMAGE, "framework.version", differs="each learner runs in it, pulled by Apptainer in place of enroot"
    ),
    **{name: OptionRow(name, refused=reason) for name, reason in _NAMED.items()},
    **{name: OptionRow(name, takes=Takes.NONE, refused=_PYXIS) for name in _FLAGS},
}
FORMER = {"workdir": "chdir", "share": "oversubscribe", "mem_bind": "mem-bind"}
"""Former names of options, and the names of today."""

_OTHERWISE = frozenset({"time", "mem", "mem-per-cpu", "mem-per-gpu", *PLUGINS})
"""Options whose readers say more about a wrong value, and options that sbatch has not."""
_HEREDOC = re.compile(r"<<-?\s*['\"\\]?(\w[\w.-]*)", re.ASCII)
_FOREIGN = ("#PBS", "#BSUB")
_OF_COMMAND = "it is an option of the submitting command; ffdl-submit has it, too"
_CUT = "sbatch takes the rest of the line for a comment, as # begins one within a word, too: write \\#"


@dataclass(frozen=True, slots=True)
class Given:
    """One option as it was given; `value` is "" for one without an argument. `line` is 0 outside the script."""

    option: OptionRow
    value: str
    origin: Origin
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Directives:
    """The options that count, by name, and what becomes of the others."""

    given: Mapping[str, Given]
    judged: tuple[Judged, ...]


def read_directives(text: str, options: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Directives:
    """Read all three: the command line wins over the environment, which wins over the script, and within each the last
    occurrence wins. What sbatch adds up is joined. Raises CannotConvert for what sbatch refuses."""
    judged: list[Judged] = []
    everything = [*_of_script(text, judged), *_of_environment(environ or {}), *_of_command(options)]
    counting: dict[str, Given] = {}
    for one in everything:
        _check_value(one)
        if one.option.repeats:
            one = replace(one, value=one_events(one.value))  # noqa: PLW2901
        name = one.option.synonym_of or one.option.name
        before = counting.pop(name, None)
        both = joined(one.option.name, before.value, one.value) if before is not None else None
        if before is not None and both is not None and before.option is one.option:
            judged.append(Judged(before.origin, before.line, before.text, *usual(before.option)))
            counting[name] = replace(one, value=both)
            continue
        if before is not None:
            judged.append(_overridden(before, one))
        counting[name] = one
    return Directives({one.option.name: one for one in counting.values()}, tuple(judged))


def _check_value(one: Given) -> None:
    """Raise CannotConvert for a number, a duration, an amount or a time that sbatch refuses."""
    if one.option.name in _OTHERWISE or one.option.takes is Takes.NONE:
        return
    try:
        check_number(SbatchOption(one.option.name, one.value.strip() or None))
        if one.option.form is Form.MOMENT:
            read_begin_time(one.value, LEAP_YEAR, ((0, 0),))
    except ValueError as error:
        raise CannotConvert(f"{one.text.strip()!r}: {error}", "", one.line) from None


def usual(row: OptionRow) -> tuple[Fate, str, str]:
    """Return what usually becomes of an option: its fate, the manifest key, and the reason."""
    if row.differs:
        return Fate.APPROXIMATED, row.key, row.differs
    return (Fate.MAPPED, row.key, "") if row.key else (Fate.DROPPED, "", row.refused or _OF_COMMAND)


def read_words(words: Sequence[str], origin: Origin, line: int = 0) -> list[Given]:
    """Read options as getopt_long does. Raises CannotConvert for an unknown one, a missing value, and other words."""
    found: list[Given] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            found.append(_long(word, rest, origin, line))
        elif word.startswith("-") and len(word) > 1 and word != "--":
            found += _letters(word, rest, origin, line)
        else:
            cure = "options begin with - or --, a value with blanks stands in quotes, and none stands around ="
            raise CannotConvert(f"sbatch has no option {word!r}", cure, line)
    return found


def _long(word: str, rest: list[str], origin: Origin, line: int) -> Given:
    name, equals, value = word[2:].partition("=")
    option = _find(name, line)
    if option.takes is Takes.NONE and equals:
        raise CannotConvert(f"--{option.name} takes no value", f"write --{option.name} alone", line)
    if option.takes is Takes.NEEDED and not equals:
        value = _value(f"--{option.name}", rest, line)
        return Given(option, value, origin, line, f"{word} {value}")
    return Given(option, value, origin, line, word)


def _letters(word: str, rest: list[str], origin: Origin, line: int) -> list[Given]:
    """``-HN2`` and the like: letters without a value may stand together, the last one may have one."""
    found: list[Given] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = BY_LETTER.get(letter)
        if option is None:
            raise CannotConvert(f"sbatch has no option -{letter}", "see sbatch --help", line)
        if option.takes is Takes.NONE:
            found.append(Given(option, "", origin, line, f"-{letter}"))
            continue
        attached, letters = letters, ""
        needed = option.takes is Takes.NEEDED and not attached
        value = _value(f"-{letter}", rest, line) if needed else attached
        found.append(Given(option, value, origin, line, f"-{letter} {value}" if needed else f"-{letter}{attached}"))
    return found


def _value(option: str, rest: list[str], line: int) -> str:
    if not rest or not rest[0]:
        raise CannotConvert(f"{option} needs a value", f"write one behind {option}", line)
    return rest.pop(0)


def _find(name: str, line: int) -> OptionRow:
    if name in BY_NAME:
        return BY_NAME[name]
    if name in PLUGINS:
        return PLUGINS[name]
    near = sorted(known for known in BY_NAME if name and known.startswith(name))
    if len(near) == 1:
        return BY_NAME[near[0]]
    cure = f"it may be {', '.join(f'--{one}' for one in near)}" if near else "see sbatch --help"
    if name in FORMER:
        cure = f"it is --{FORMER[name]} now"
    raise CannotConvert(f"sbatch has no option --{name}", cure, line)


def _of_script(text: str, judged: list[Judged]) -> list[Given]:
    found: list[Given] = []
    for number, line in comments_of(text):
        if line.startswith(_FOREIGN):
            reason = "only #SBATCH lines are read; write it as one"
            judged.append(Judged(Origin.SCRIPT, number, line.strip(), Fate.DROPPED, "", reason))
        if not line.startswith(MARK):
            continue
        words, cut, quote = split_line(line.removeprefix(MARK))
        if quote:
            text = line.removeprefix(MARK).strip()[:60]
            raise CannotConvert(f"{quote} is not closed in {text!r}", "close it on this line", number)
        if cut:
            judged.append(Judged(Origin.SCRIPT, number, cut, Fate.DROPPED, "", _CUT))
        if words in (["hetjob"], ["packjob"]):
            raise CannotConvert(
                "a heterogeneous job is several jobs with resources of their own, which no manifest asks for",
                "convert each component as a script of its own, or use batch.roles of a manifest",
                number,
            )
        found += read_words(words, Origin.SCRIPT, number)
    for first, number, line in _late_lines(text):
        reason = f"sbatch reads no option behind the first command, line {first}; move it up if it is to count"
        judged.append(Judged(Origin.SCRIPT, number, line, Fate.DROPPED, "", reason))
    return found


def _late_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the ``#SBATCH`` lines behind the first command, which sbatch does not read: the line of that command, the
    number of the line, and the line. Lines of here-documents are text."""
    first, waits = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if waits:
            waits = "" if line.strip() == waits else waits
        elif first and line.startswith(MARK) and line.removeprefix(MARK)[:1].isspace():
            yield first, number, line.strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            first = first or number
            begun = _HEREDOC.search(line)
            waits = begun[1] if begun else ""


def _of_environment(environ: Mapping[str, str]) -> list[Given]:
    """Read ``SBATCH_*``. The variable of an option with a value counts if it is not empty."""
    found: list[Given] = []
    for variable, option in BY_VARIABLE.items():
        value = environ.get(variable)
        if value is None:
            continue
        text = f"{variable}={value}"
        if option.takes is Takes.NONE:
            if is_flag_set(value):
                found.append(Given(option, "", Origin.ENVIRONMENT, 0, text))
        elif value or option.takes is Takes.OPTIONAL:
            found.append(Given(option, _of_switches(variable, value, environ), Origin.ENVIRONMENT, 0, text))
    return found


def _of_switches(variable: str, value: str, environ: Mapping[str, str]) -> str:
    """Join the two variables of ``--switches=COUNT@TIME``."""
    if variable == "SBATCH_WAIT4SWITCH":
        return f"{environ.get('SBATCH_REQ_SWITCH', '1')}@{value}"
    return value


def _of_command(options: Sequence[str]) -> list[Given]:
    if ":" in options:
        raise CannotConvert("a : begins another component of a heterogeneous job", "convert each by itself")
    return read_words(options, Origin.COMMAND)


def _overridden(before: Given, by: Given) -> Judged:
    where = f"line {by.line}" if by.line else f"the {by.origin}"
    return Judged(before.origin, before.line, before.text, Fate.DROPPED, "", f"{where} says {by.text}, which counts")


class Options:
    """The options that count, by name, and what becomes of each: what the table has, unless a method set it."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self._given = given
        self._reported: dict[str, tuple[Fate, str, str]] = {}
        self._lost: list[Judged] = []

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

    def lose(self, name: str, reason: str) -> None:
        """Report that a part of what the option means is dropped, beside what becomes of the option."""
        one = self._given.get(name)
        if one is not None:
            self._lost.append(Judged(one.origin, one.line, one.text, Fate.DROPPED, "", reason))

    def map(self, name: str, to: str, reason: str = "") -> None:
        """Report the option as mapped, to another key than that of the table."""
        self._report(name, Fate.MAPPED, reason, to)

    def judged(self) -> tuple[Judged, ...]:
        """Return what becomes of each option."""
        return (*(self._judge(one) for one in self._given.values()), *self._lost)

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

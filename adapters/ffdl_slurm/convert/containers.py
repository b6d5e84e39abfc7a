"""Reads the containers in a script that runs whole: those that srun asks Pyxis for, and those of other programs.

A learner runs in one image, in which the srun of the script starts no other one
(:mod:`ffdl_batch.runtimes.slurm_commands`). So a container is the image of the manifest, or it is reported as dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ffdl_batch.domain.conversion import Fate, Judged, Origin
from ffdl_batch.domain.sbatch.option_table import Takes
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.convert.container_programs import is_variable, started_by
from ffdl_slurm.convert.directives import IMAGE, MOUNTS, PLUGINS
from ffdl_slurm.convert.launch_command import CONTAINERS, NotUnderstood, pyxis_image
from ffdl_slurm.convert.output_variables import NO_IMAGE
from ffdl_slurm.convert.shell_tree import Script, Word
from ffdl_slurm.convert.shell_variables import Known, known_variables, literal

_SRUN = re.compile(r"(?<![\w.-])srun(?=\s)")
_KEPT_OPTIONS = re.compile(r"\s*(?:(?:export|declare|readonly|local)\s+)?(?:\w+\+?=|--container-)")
_IN_TEXT = re.compile(r"--container-[a-z-]+(?:[=\s]+[^\s\"'()-][^\s\"'()]*)?")
_ALONE = frozenset({
    "bcast", "compress", "contiguous", "disable-status", "exact", "exclusive", "external", "help", "hold", "immediate",
    "interactive", "kill-on-bad-exit", "label", "multi-prog", "nice", "no-allocate", "no-kill", "overcommit", "overlap",
    "oversubscribe", "preserve-env", "propagate", "pty", "quiet", "quit-on-interrupt", "reboot", "resv-ports",
    "send-libs", "spread-job", "stepmgr", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version",
    "whole", "x11",
})  # fmt: skip
"""Options of srun that take a value only after ``=`` (srun(1) of 26.05)."""
_LETTERS_ALONE = frozenset("EHIKOQVXZhklsuv")
_AS_LEARNERS = frozenset({"no-container-mount-home"})
_STARTED = "started"
"""The name of an :class:`_Asked` for a container that the script starts itself."""
_MOUNT = "mount"


@dataclass(frozen=True, slots=True)
class Containers:
    """The containers of a script."""

    image: str = ""
    """The image that all of them name; "" if there is none, or several."""
    judged: tuple[Judged, ...] = ()
    """What became of each option."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """An option in a line."""

    line: int
    name: str
    value: str | None
    """None if it is not known before the script runs."""
    text: str


def read_containers(script: Script, directive: str, given: str, inputs: Known) -> Containers:
    """Return the containers of a script. `directive` is the image that ``#SBATCH`` names, `given` that of the command
    line; both win over the script's. `inputs` are the variables and arguments that the script gets."""
    asked = list(_asked(script, known_variables(script, inputs)))
    images = [(one, *_image(one)) for one in asked if one.name == IMAGE]
    several = sorted({image for _, image, _ in images if image})
    before = directive or ("" if given == NO_IMAGE else given)
    sure = len(several) == 1 and all(image for _, image, _ in images)
    taken = before or (several[0] if sure else "")
    judged = [_judge_image(one, image, why, taken, directive, several) for one, image, why in images]
    judged += [_judge_started(one, taken) for one in asked if one.name == _STARTED]
    judged += [_dropped(one) for one in asked if one.name not in (IMAGE, _STARTED, *_AS_LEARNERS)]
    return Containers("" if before else taken, tuple(judged))


def _judge_image(one: _Asked, image: str, why: str, taken: str, directive: str, several: Sequence[str]) -> Judged:
    to = "framework.version"
    if image and image == taken:
        reason = "the whole script runs in it, pulled by Apptainer in place of enroot"
        return Judged(Origin.BODY, one.line, one.text, Fate.APPROXIMATED, to, reason)
    if directive:
        reason = f"the whole script runs in {directive}, which #SBATCH names, and a learner has one image"
    elif taken:
        reason = f"the whole script runs in {taken}, which --image names"
        return Judged(Origin.BODY, one.line, one.text, Fate.APPROXIMATED, to, reason)
    elif why:
        reason = f"{why}; name an image by --image"
    elif len(several) > 1:
        reason = f"the script names {' and '.join(several)}; a learner has one image: name one that has all by --image"
    else:
        reason = "another srun names an image that is not known, and a learner has one: name it by --image"
    return Judged(Origin.BODY, one.line, one.text, Fate.DROPPED, "", reason)


def _judge_started(one: _Asked, taken: str) -> Judged:
    """Judge a container that the script starts. Learners cannot start containers in theirs, so its content is lost
    unless the command line names an image for it."""
    if taken:
        reason = f"the whole script runs in {taken}: take what starts a container out of the line"
        return Judged(Origin.BODY, one.line, one.text, Fate.APPROXIMATED, "framework.version", reason)
    named = f" {shlex.quote(one.value)}" if one.value else ""
    reason = f"learners start no container of their own: name the image by --image{named}"
    return Judged(Origin.BODY, one.line, one.text, Fate.DROPPED, "", reason)


def _dropped(one: _Asked) -> Judged:
    reason = MOUNTS if one.name == _MOUNT else PLUGINS[one.name].refused
    return Judged(Origin.BODY, one.line, one.text, Fate.DROPPED, "", reason)


def judge_variables(script: Script) -> tuple[Judged, ...]:
    """Report variables for Apptainer, which the learners do not read, also of a script that is understood."""
    return tuple(
        Judged(Origin.BODY, one.line, one.text, Fate.DROPPED, "", _why_unread(one.name))
        for one in script.assignments
        if is_variable(one.name) and one.raw.strip("\"'")
    )


def judge_mounts(script: Script) -> tuple[Judged, ...]:
    """Report the mounts of containers in a script that is understood, which learners do not have."""
    known: Known = {}
    return tuple(_dropped(one) for one in _asked(script, known) if one.name not in (IMAGE, _STARTED, *_AS_LEARNERS))


def _why_unread(name: str) -> str:
    _, of_container, variable = name.partition("ENV_")
    if variable in ("PREPEND_PATH", "APPEND_PATH"):
        return "learners do not have it in PATH: set PATH with export in the script"
    return f"learners do not have it as {variable}: write that into batch.env" if of_container else MOUNTS


def _image(one: _Asked) -> tuple[str, str]:
    """Return the image, or "" and why there is none."""
    if one.value is None:
        return "", "the image is not known before the script runs"
    try:
        return pyxis_image(one.value), ""
    except NotUnderstood as error:
        return "", str(error)


def _asked(script: Script, known: Known) -> Iterator[_Asked]:
    for command in script.commands:
        if command.name == "srun":
            yield from _of_srun(command.line, command.words[1:], known)
        started = started_by(command)
        if started is not None:
            image = f" {started.image.raw}" if started.image else ""
            value = literal(started.image.raw, known) if started.image and command.name in CONTAINERS else None
            yield _Asked(command.line, _STARTED, value, started.how + image)
            yield from (_Asked(command.line, _MOUNT, None, mount) for mount in started.mounts)
    for line, text in zip(script.lines, script.executed(), strict=True):
        if not _KEPT_OPTIONS.match(text) or _SRUN.search(text):
            continue
        for found in _IN_TEXT.finditer(text):
            name, _, raw = re.sub(r"[=\s]+", "=", found[0], count=1).removeprefix("--").partition("=")
            if name in PLUGINS:
                yield _Asked(line.number, name, literal(raw, known) if raw else None, found[0])


def _of_srun(number: int, words: Sequence[Word], known: Known) -> Iterator[_Asked]:
    """Yield the options that plugins add to srun. Words that the shell expands are skipped."""
    rest = list(words)
    while rest and rest[0].raw[:1] in ("-", "$", '"') and rest[0].raw != "--":
        word = rest.pop(0)
        option, equals, raw = word.raw.partition("=")
        if not word.raw.startswith("-"):
            if not word.raw.startswith(("$", '"$')):
                return
            continue
        name = option.removeprefix("--")
        row = PLUGINS.get(name) if option.startswith("--") else None
        value, text = literal(raw, known), word.raw
        alone = bool(equals) or (row.takes is Takes.NONE if row else _stands_alone(option))
        if not alone and rest:
            value, text = literal(rest[0].raw, known), f"{word.raw} {rest[0].raw}"
            rest.pop(0)
        if row:
            yield _Asked(number, name, value, text)


def _stands_alone(option: str) -> bool:
    if option.startswith("--"):
        return option.removeprefix("--") in _ALONE
    return len(option) > 2 or option[1:] in _LETTERS_ALONE

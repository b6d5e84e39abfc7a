"""Reads the commands of a script: which part of it the learners run, and in which image.

A script for one node, or without srun, runs in the first learner as it stands, without what starts a container. One
with a step of srun on all nodes runs in each learner, if all other commands may. Every other script runs whole.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from ffdl_batch.domain.conversion import Fate, Judged, Origin
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert.launch_command import CONTAINERS, Edit, NotUnderstood, Step, read_step
from ffdl_slurm.convert.line_report import missing_arguments, report_lines
from ffdl_slurm.convert.same_everywhere import PREPARES, check_statement, check_substituted, check_variables
from ffdl_slurm.convert.script_text import command_text
from ffdl_slurm.convert.shell_tree import Command, Script, within
from ffdl_slurm.convert.shell_variables import (
    Known,
    defaults_in,
    known_variables,
    literal,
    with_foreign,
    with_remark,
)
from ffdl_slurm.convert.task_layout import Layout
from ffdl_slurm.convert.whole_scripts import VERBS, check_script

_SHELLS = frozenset({"sh", "bash"})
_OPTIONS = re.compile(r"-[lexuv]+|--login")
_MASTER = re.compile(
    r"\$\(\s*scontrol\s+show\s+host(names?)\s+(\"?\$\{?SLURM_(JOB_)?NODELIST\}?\"?)?\s*\|\s*head\s+(-n\s*1|-1|-n1)\s*\)"
    r"|\$\(\s*hostname(\s+-s)?\s*\)|\$\{?SLURMD_NODENAME\}?|`\s*hostname(\s+-s)?\s*`"
)
_TRANSPARENT = frozenset({"time", "nohup", "nice", "env", "numactl", "timeout", "stdbuf", "exec", "ionice", "taskset"})
"""Programs that start the command behind their options and give it all that they have."""
_READ_VARIABLES = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "USER", "SHELL", "IFS", "BASH_ENV", "ENV", *PROTECTED}
)
"""Variables that the platform sets or extends, or that its shell reads: the command sets them."""


@dataclass(frozen=True, slots=True)
class Body:
    """What the learners run. `command` is "" if the script runs whole, and `wrapped` says why."""

    judged: tuple[Judged, ...]
    command: str = ""
    image: str = ""
    alone: bool = False
    """Whether the first learner alone runs the command."""
    one_task: bool = False
    """Whether an srun that starts one task on each node was taken away."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The variables that the manifest sets."""
    wrapped: str = ""
    steps: bool = False
    """Whether an srun of the script starts tasks."""


@dataclass(slots=True)
class _Reading:
    script: Script
    layout: Layout
    inputs: Known
    given: Known
    edits: list[Edit] = field(default_factory=list)
    image: str = ""
    stays: bool = False
    one_task: bool = False
    env: dict[str, str] = field(default_factory=dict)
    changed: dict[int, Judged] = field(default_factory=dict)


def read_body(script: Script, arguments: Sequence[str], layout: Layout, given: Known) -> Body:
    """Read the commands of a script that begins with a shebang. `given` are the variables that sbatch exports to it."""
    text = script.data.decode("utf-8", "replace")
    shell, options = _interpreter(text)
    if not shell:
        whose = text.split("\n", 1)[0].removeprefix("#!").strip() or "no interpreter"
        return Body(_whole_file(text, whose), wrapped=f"it is a program of {whose}")
    inputs = {**given, **{str(number): one for number, one in enumerate(arguments, 1)}}
    reading = _Reading(script, layout, {**_of_sbatch(layout), **inputs}, given)
    try:
        check_script(script)
        if not any(one.name == "srun" for one in script.commands) or layout.nodes == 1:
            alone = layout.nodes > 1
            _read_once(reading)
        else:
            alone = False
            _read_everywhere(reading)
    except NotUnderstood as error:
        number = f" (line {error.args[1]})" if len(error.args) > 1 else ""
        return _whole(script, layout, given, arguments, f"{error.args[0]}{number}")
    edits = [*reading.edits, *_moved(reading)]
    judged = _judged(script, layout, given, arguments, reading.changed, whole=False)
    if re.search(r" (-\w*l\w*|--login)\s*$", text.split("\n", 1)[0]):
        login = "learners read no login files: what those set has to be in the image or in the script"
        first = Judged(Origin.BODY, 1, text.split("\n", 1)[0], Fate.APPROXIMATED, "framework.command", login)
        judged = (first, *judged)
    command = command_text(script, edits)
    if arguments:
        command = _joined(f"set -- {shlex.join(arguments)}", command)
    if options:
        command = _joined(f"set {options}", command)
    return Body(
        judged, command, reading.image, alone, reading.one_task, reading.env,
        steps=reading.stays or any(one.name == "srun" and one.behind for one in script.commands),
    )  # fmt: skip


def _joined(first: str, command: str) -> str:
    return f"{first}\n{command}" if "\n" in command else f"{first}; {command}"


def _interpreter(text: str) -> tuple[str, str]:
    """Return the shell and its options for ``set``; "" for another interpreter."""
    words = text.split("\n", 1)[0].removeprefix("#!").split()
    if words[:1] and words[0].endswith("/env"):
        words = [one for one in words[1:] if one != "-S"]
    if not words or words[0].rsplit("/", 1)[-1] not in _SHELLS or not all(map(_OPTIONS.fullmatch, words[1:])):
        return "", ""
    letters = "".join(one.lstrip("-") for one in words[1:] if one != "--login").replace("l", "")
    return words[0], f"-{letters}" if letters else ""


def _of_sbatch(layout: Layout) -> dict[str, str]:
    """Return the counts that sbatch always sets in the environment of a script."""
    nodes = str(layout.nodes)
    return {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": str(layout.ntasks)}


def _read_once(reading: _Reading) -> None:
    """Read a script that the first learner alone runs, as sbatch does on the first node."""
    script, layout = reading.script, reading.layout
    for one in script.commands:
        if layout.nodes > 1:
            _check_alone(one)
        if one.name not in CONTAINERS and one.name != "srun":
            continue
        if one.name in CONTAINERS and not any(word.value in VERBS for word in one.words[1:6]):
            if not one.behind and any(word.value in ("build", "pull") for word in one.words[1:4]):
                raise NotUnderstood(f"{one.name} builds or pulls an image", one.line)
            continue
        if one.name in CONTAINERS and one.behind == "srun":
            continue  # read with its srun
        if one.behind and one.behind not in _TRANSPARENT:
            if one.name == "srun" and not any("container" in word.raw for word in one.words):
                continue  # the learner's srun starts it
            raise NotUnderstood(f"{one.behind} starts {one.name}", one.line)
        _take_step(one, _step_of(one, reading), reading)
    _drop_exec(reading)
    _report_shared_image(reading)


def _report_shared_image(reading: _Reading) -> None:
    """Note at the lines that name the image that other programs of the script run in it, too."""
    script = reading.script
    held = [one for one in script.commands if one.name in CONTAINERS or one.name == "srun"]
    others = [
        one for one in script.commands
        if one.words and one.name not in PREPARES and not any(other.start <= one.start < other.end for other in held)
    ]  # fmt: skip
    for number, one in reading.changed.items():
        if others and reading.image and "framework.version" in one.to:
            reading.changed[number] = with_remark(
                one, f"{others[0].name or 'others'} and the like run in this image, too"
            )


def _check_alone(one: Command) -> None:
    """Raise NotUnderstood for a command that may start tasks on the other nodes, which the script does not show."""
    if one.words and not one.name and one.top:
        raise NotUnderstood(f"{one.words[0].raw} is a program that is not known before it runs", one.line)
    file = one.words[1].raw if len(one.words) > 1 and one.name in ("source", ".", *_SHELLS) else one.name
    if file.strip("\"'").endswith(".sh") and not re.search(r"conda|mamba|profile", file):
        raise NotUnderstood(f"{file} may start steps on the other nodes", one.line)


def _step_of(one: Command, reading: _Reading) -> Step:
    try:
        return read_step(one, reading.layout, known_variables(reading.script, reading.inputs, one.start))
    except NotUnderstood as error:
        raise NotUnderstood(error.args[0], *(error.args[1:] or (one.line,))) from None


def _take_step(one: Command, step: Step, reading: _Reading) -> None:
    if step.image and reading.image and step.image != reading.image:
        raise NotUnderstood(f"it starts containers of {reading.image} and of {step.image}", one.line)
    reading.image = reading.image or step.image
    reading.edits += step.edits
    reading.stays = reading.stays or step.stays
    reading.one_task = reading.one_task or (step.by_srun and not step.stays)
    if not step.edits and not step.approximations:
        return
    to = "framework.command" + (", framework.version" if step.image else "") + (", learners" if step.by_srun else "")
    line = next(line for line in reading.script.lines if line.number == one.line)
    before = reading.changed.get(one.line)
    reasons = [*([before.reason] if before and before.reason else []), *dict.fromkeys(step.approximations)]
    fate = Fate.APPROXIMATED if reasons else Fate.MAPPED
    reading.changed[one.line] = Judged(Origin.BODY, line.number, line.text, fate, to, "; ".join(reasons))


def _drop_exec(reading: _Reading) -> None:
    """Take ``exec`` away from the last command, so that the learner's shell sees its end."""
    for one in reading.script.commands:
        if one.name == "exec" and len(one.words) > 1 and not one.behind:
            later = [other for other in reading.script.commands if other.start >= one.end]
            if later or not one.top:
                raise NotUnderstood("exec ends the script before its last command", one.line)
            reading.edits.append(Edit(one.words[0].start, one.words[1].start))


def _read_everywhere(reading: _Reading) -> None:
    """Read a script for several nodes whose srun starts tasks on all of them: each learner runs it."""
    script = reading.script
    steps = [one for one in script.commands if one.name == "srun" and not within(one.start, script.substituted)]
    hidden = next((one for one in steps if one.behind), None)
    if hidden is not None:
        raise NotUnderstood(f"{hidden.behind} starts srun", hidden.line)
    if len(steps) != 1:
        where = f"line {steps[1].line}" if len(steps) > 1 else "a substitution"
        raise NotUnderstood(f"it has several steps of srun, or none at its end: {where}")
    launch = steps[0]
    if not launch.top:
        raise NotUnderstood("srun is in a condition, a loop, a function or a list", launch.line)
    if launch.redirected:
        raise NotUnderstood("the output of all tasks goes into one file", launch.line)
    step = _step_of(launch, reading)
    check_variables([one for one in script.reads if launch.start <= one.start < launch.end])
    for one in script.commands:
        if launch.start < one.start < launch.end and within(one.start, script.substituted):
            check_substituted(one)
        if launch.start < one.start < launch.end and one.name in CONTAINERS and one.behind not in ("", "srun"):
            raise NotUnderstood(f"{one.behind} starts a container of its own", one.line)
    _check_defaults(launch, reading)
    for node in script.root.children:
        if node.type == "&":
            raise NotUnderstood("it runs something in the background", node.start_point[0] + 1)
        if not node.is_named or node.type == "comment" or node.start_byte <= launch.start < node.end_byte:
            continue
        if not _is_master(node.start_byte, reading):
            check_statement(script, node.start_byte, node.end_byte)
    _take_step(launch, step, reading)


def _check_defaults(launch: Command, reading: _Reading) -> None:
    text = reading.script.data[launch.start : launch.end].decode("utf-8", "replace")
    if "MASTER_ADDR" in defaults_in(text, known_variables(reading.script, reading.inputs)):
        raise NotUnderstood("MASTER_ADDR has a default, and learners have one of their own", launch.line)


def _is_master(start: int, reading: _Reading) -> bool:
    """Take away an ``export MASTER_ADDR=…`` of the first node: learners have it from the platform."""
    for one in reading.script.commands:
        if one.start != start or one.name != "export" or len(one.words) != 2:
            continue
        name, _, value = one.words[1].raw.partition("=")
        if name == "MASTER_ADDR" and _MASTER.fullmatch(value.strip('"')):
            line = next(line for line in reading.script.lines if line.number == one.line)
            reading.edits.append(Edit(one.start, one.end))
            reason = "learners get the address of the first learner"
            reading.changed[one.line] = Judged(Origin.BODY, one.line, line.text, Fate.MAPPED, "MASTER_ADDR", reason)
            return True
    return False


def _moved(reading: _Reading) -> Iterator[Edit]:
    """Yield the removal of leading exports with known values, which the manifest sets, and note their variables."""
    script = reading.script
    edited = {one.start for one in reading.edits}
    for node in script.root.children:
        if not node.is_named or node.type == "comment" or node.start_byte in edited:
            continue
        one = next((one for one in script.commands if one.start == node.start_byte), None)
        if one is None or one.name != "export" or not _take_export(one, reading):
            return
        yield Edit(one.start, one.end)


def _take_export(one: Command, reading: _Reading) -> bool:
    values: dict[str, str] = {}
    known = {**reading.given, **reading.env}
    text = reading.script.data[one.start : one.end].decode("utf-8", "replace")
    for word in one.words[1:]:
        name, equals, raw = word.raw.partition("=")
        value = literal(raw, {**_unknown(reading, known), **values}) if equals and name.isidentifier() else None
        if (
            value is None
            or why_refused(name)
            or name in _READ_VARIABLES
            or name in reading.env
            or not value.isprintable()
        ):
            return False
        values[name] = value
    if not values or list(defaults_in(text, known)):
        return False
    reading.env.update(values)
    line = next(line for line in reading.script.lines if line.number == one.line)
    reading.changed[one.line] = Judged(Origin.BODY, line.number, line.text, Fate.MAPPED, "batch.env")
    return True


def _unknown(reading: _Reading, known: Known) -> dict[str, str | None]:
    """Return the variables that are known before the first command."""
    later: dict[str, str | None] = dict.fromkeys(one.name for one in reading.script.assignments)
    return {**later, **known}


def _judged(
    script: Script,
    layout: Layout,
    given: Known,
    arguments: Sequence[str],
    changed: Mapping[int, Judged],
    *,
    whole: bool,
) -> tuple[Judged, ...]:
    lines = list(report_lines(script, layout, given, changed, whole=whole))
    missing = missing_arguments(script, arguments)
    lines = [with_remark(one, missing[one.line]) if one.line in missing else one for one in lines]
    return tuple(with_foreign(lines, script, given))


def _whole(script: Script, layout: Layout, given: Known, arguments: Sequence[str], why: str) -> Body:
    judged = _judged(script, layout, given, arguments, {}, whole=True)
    return Body(judged, wrapped=why, steps=_starts_steps(script, layout))


def _starts_steps(script: Script, layout: Layout) -> bool:
    """Return whether the script, or one that it starts, has an srun that starts tasks."""
    if any(one.name == "srun" for one in script.commands):
        return True
    if any(re.search(r"(?<![\w./-])srun\b", text) for text in script.executed()):
        return True
    return layout.nodes > 1 and any(
        word.raw.strip("\"'").endswith(".sh")
        for one in script.commands
        if one.name in _SHELLS or one.name.endswith(".sh")
        for word in one.words
    )


def _whole_file(text: str, whose: str) -> tuple[Judged, ...]:
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")), 0)
    if not first:
        return ()
    shown = f"lines {first} to {len(text.splitlines())}"
    return (Judged(Origin.BODY, first, shown, Fate.MAPPED, "framework.command", f"{whose} runs them as they are"),)

"""Reads the commands of a script.

It understands scripts of simple commands: some that prepare (modules, environments, variables), and a last one, the
launch. Every other script is wrapped and runs unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from ffdl_batch.domain.conversion import Fate, Judged, Origin
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert.executed_text import executed
from ffdl_slurm.convert.launch_command import Launch, NotUnderstood, check_same, read_launch, reads_arguments
from ffdl_slurm.convert.shell_syntax import Line, Word, lines_of
from ffdl_slurm.convert.shell_variables import (
    Known,
    defaults_in,
    expand,
    literal,
    sets_default,
    why_default,
    with_foreign,
)
from ffdl_slurm.convert.task_layout import Layout

_SHELLS = frozenset({"sh", "bash"})
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_MASTER = re.compile(
    r"\$\(\s*scontrol\s+show\s+host(names?)\s+(\"?\$\{?SLURM_(JOB_)?NODELIST\}?\"?)?\s*\|\s*head\s+(-n\s*1|-1|-n1)\s*\)"
    r"|\$\(\s*hostname(\s+-s)?\s*\)|\$\{?SLURMD_NODENAME\}?|`\s*hostname(\s+-s)?\s*`"
)
_HOME = re.compile(r"cd (\"?\$\{?SLURM_SUBMIT_DIR\}?\"?|\"?\$PWD\"?|\.)/?")
_MODULES = "the image has to have modules and what they load, or choose one that has the software: --image"
_ENVIRONMENT = "the image has to have this environment, or choose one that has the software: --image"
_DIRECTORY = "the directory has to be there for learners, which see their image"
_HARMLESS = frozenset({"echo", "date", "hostname", "pwd", "printf", "whoami", "uname", "nvidia-smi", "mkdir"})
_KEPT = frozenset({"ulimit", "umask", "true", ":"})
_SOURCING = frozenset({"source", ".", "conda", "mamba", "micromamba", "pyenv", "spack"})


@dataclass(frozen=True, slots=True)
class Body:
    """The commands. If `launch` is None, the script runs whole, and `wrapped` says why. `setup` are the commands before
    the launch that each learner runs unchanged, `env` the variables that the manifest sets."""

    judged: tuple[Judged, ...]
    launch: Launch | None = None
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    wrapped: str = ""
    master: bool = False
    steps: bool = False
    """Whether a wrapped script has an srun that starts tasks."""


@dataclass(slots=True)
class _Reading:
    """The state after the lines that were read."""

    layout: Layout
    judged: list[Judged] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    known: dict[str, str | None] = field(default_factory=dict)
    master: bool = False

    def judge(self, line: Line, fate: Fate, to: str, reason: str = "") -> None:
        self.judged.append(Judged(Origin.BODY, line.number, line.text, fate, to, reason))


def read_body(text: str, arguments: Sequence[str], layout: Layout, given: Known) -> Body:
    """Read the commands of a script that begins with a shebang. `given` are the variables that sbatch exports to it."""
    interpreter = text.split("\n", 1)[0].removeprefix("#!").split()
    if not interpreter or interpreter[0].rsplit("/", 1)[-1] not in _SHELLS:
        if interpreter[1:2] and interpreter[0].endswith("/env") and interpreter[1] in _SHELLS and len(interpreter) == 2:
            interpreter = [interpreter[1]]
        else:
            whose = " ".join(interpreter) or "no interpreter"
            return Body(_whole_file(text, whose), wrapped=f"it is a program of {whose}")
    lines = list(lines_of(text, 2))
    why = _why_whole(interpreter, arguments, lines)
    reading = _Reading(layout, known=dict(given))
    try:
        if why:
            raise NotUnderstood(why)
        for line in lines[:-1]:
            _prepare(line, reading)
        launch = read_launch(lines[-1].text, lines[-1].words, layout, reading.known)
        _check_master(launch, reading)
    except NotUnderstood as error:
        number = f" (line {error.args[1]})" if len(error.args) > 1 else ""
        judged = tuple(with_foreign(list(_as_they_are(lines, layout, given)), lines, given))
        return Body(judged, wrapped=f"{error.args[0]}{number}", steps=_steps(lines))
    reading.judged.append(_judge_launch(lines[-1], launch))
    judged = tuple(with_foreign(reading.judged, lines, given))
    return Body(judged, launch, tuple(reading.setup), reading.env, master=reading.master, steps=_steps(lines))


def _why_whole(interpreter: Sequence[str], arguments: Sequence[str], lines: Sequence[Line]) -> str:
    if len(interpreter) > 1:
        return f"its shell has options: {' '.join(interpreter)}"
    if arguments:
        return "it is given arguments"
    if not lines:
        return "it has no command"
    for line in lines:
        if line.why:
            has = ":" if " begins " in f"{line.why} " or line.why.startswith("no ") else " has"
            return f"line {line.number}{has} {line.why}"
    return ""


def _prepare(line: Line, reading: _Reading) -> None:
    """Read a command before the last one. Raises NotUnderstood."""
    name = line.words[0].value
    if _HOME.fullmatch(line.text):
        reading.judge(line, Fate.MAPPED, "framework.command", "the command starts in its copy of the model")
        return
    if name == "export" or all(_ASSIGNMENT.fullmatch(word.raw) for word in line.words):
        _assign(line, reading, exported=name == "export")
        return
    if any(reads_arguments(word.live) for word in line.words):
        raise NotUnderstood("it reads the script's arguments", line.number)
    rule = _RULES.get((name or "").rsplit("/", 1)[-1])
    if rule is None:
        what = name or line.words[0].raw
        raise NotUnderstood(f"{what} runs before the last command", line.number)
    for word in line.words:
        check_same(word.live, reading.layout)
    rule(line, reading)


def _module(line: Line, reading: _Reading) -> None:
    _keep(line, reading, Fate.APPROXIMATED, _MODULES)


def _source(line: Line, reading: _Reading) -> None:
    _keep(line, reading, Fate.APPROXIMATED, _ENVIRONMENT)


def _shell_word(line: Line, reading: _Reading) -> None:
    """Read ``unset``, and ``:`` with the defaults that it gives to variables."""
    names = list(defaults_in(line.text, reading.known))
    for word in line.words[1:]:
        reading.known |= {word.value: None} if word.value and word.value.isidentifier() else {}
        found = sets_default(word)
        if found is not None and reading.known.get(found[0], "") == "":
            reading.known[found[0]] = expand(found[1], reading.known)
    _keep(line, reading, Fate.APPROXIMATED if names else Fate.MAPPED, why_default(names) if names else "")


def _change(line: Line, reading: _Reading) -> None:
    where = literal(line.words[1], reading.known) if len(line.words) == 2 else None
    if where is not None and not where.startswith(("/", "~")):
        _keep(line, reading, Fate.MAPPED, "")
        return
    _keep(line, reading, Fate.APPROXIMATED, _DIRECTORY)


def _print(line: Line, reading: _Reading) -> None:
    if reading.layout.nodes == 1:
        _keep(line, reading, Fate.MAPPED, "")
        return
    _keep(line, reading, Fate.APPROXIMATED, "each learner does so")


def _keep(line: Line, reading: _Reading, fate: Fate, reason: str) -> None:
    reading.setup.append(line.text)
    reading.judge(line, fate, "framework.command", reason)


_RULES: Mapping[str, Callable[[Line, _Reading], None]] = {
    "module": _module,
    "ml": _module,
    "cd": _change,
    "unset": _shell_word,
    **dict.fromkeys(_SOURCING, _source),
    **dict.fromkeys(_KEPT, _shell_word),
    **dict.fromkeys(_HARMLESS, _print),
}


def _assign(line: Line, reading: _Reading, *, exported: bool) -> None:
    """Read ``export A=b C`` or ``A=b``. Known values before other commands go to the manifest."""
    words = line.words[1:] if exported else line.words
    if not words or any(word.raw.startswith("-") for word in words):
        raise NotUnderstood("export has options", line.number)
    names = list(defaults_in(line.text, reading.known))
    values: dict[str, str] | None = {}
    for word in words:
        match = _ASSIGNMENT.fullmatch(word.raw)
        first = reading.layout.nodes > 1 and match is not None and _MASTER.fullmatch(match[2].strip('"'))
        if first and match is not None and match[1] == "MASTER_ADDR" and exported:
            reading.master = True
            reading.judge(line, Fate.MAPPED, "MASTER_ADDR", "learners get the address of the first learner")
            if len(words) > 1:
                raise NotUnderstood("other variables are set in the line of MASTER_ADDR", line.number)
            return
        _check_value(word, reading, line.number)
        value = literal(word, reading.known)
        if match is not None:
            reading.known[match[1]] = None if value is None else value.partition("=")[2]
        if match is None or value is None:
            values = None
        elif values is not None:
            values[match[1]] = value.partition("=")[2]
    early = exported and not names and not reading.setup and values and not any(map(why_refused, values))
    if early and values and all(name not in reading.env and name not in _READ_VARIABLES for name in values):
        reading.env.update(values)
        reading.judge(line, Fate.MAPPED, "batch.env")
        return
    _keep(line, reading, Fate.APPROXIMATED if names else Fate.MAPPED, why_default(names) if names else "")


_READ_VARIABLES = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "USER", "SHELL", "IFS", "BASH_ENV", "ENV", *PROTECTED}
)
"""Variables that the platform sets or extends, or that its shell reads: the command sets them."""


def _check_value(word: Word, reading: _Reading, number: int) -> None:
    try:
        check_same(word.live, reading.layout)
    except NotUnderstood as error:
        raise NotUnderstood(str(error), number) from None
    if reads_arguments(word.live):
        raise NotUnderstood("it reads the script's arguments", number)


def _check_master(launch: Launch, reading: _Reading) -> None:
    """Raise NotUnderstood if MASTER_ADDR is set and only a command of the first node uses it: that command starts
    processes itself and may need a host name."""
    if reading.master and launch.alone:
        raise NotUnderstood("MASTER_ADDR is set, and a command of the first node alone uses it")


def _judge_launch(line: Line, launch: Launch) -> Judged:
    to = "framework.command" + (", framework.version" if launch.image else "") + (", learners" if launch.by else "")
    if launch.alone:
        to += ", batch.roles"
    fate = Fate.APPROXIMATED if launch.approximations else Fate.MAPPED
    return Judged(Origin.BODY, line.number, line.text, fate, to, "; ".join(launch.approximations))


def _as_they_are(lines: Sequence[Line], layout: Layout, given: Known) -> Iterator[Judged]:
    """Judge the lines of a script that runs whole, in the first learner."""
    before: dict[str, str | None] = dict(given)
    for line, text in zip(lines, executed(lines), strict=True):
        names = list(defaults_in(line.text, before))
        before |= dict.fromkeys(match[1] for match in _SETS.finditer(text))
        one = _as_it_is(line, text, layout)
        if names:
            reason = "; ".join([one.reason] * (one.fate is not Fate.MAPPED) + [why_default(names)])
            one = replace(one, fate=Fate.APPROXIMATED, reason=reason)
        yield one


def _as_it_is(line: Line, ran: str, layout: Layout) -> Judged:
    for pattern, reason in _REMARKS:
        if pattern.search(line.text if pattern is _VARIABLES else ran):
            if reason == _SUBMITS:
                return Judged(Origin.BODY, line.number, line.text, Fate.DROPPED, "", reason)
            why = _SENT if reason == _STEP and layout.nodes > 1 else reason
            return Judged(Origin.BODY, line.number, line.text, Fate.APPROXIMATED, "framework.command", why)
    return Judged(Origin.BODY, line.number, line.text, Fate.MAPPED, "framework.command", "it runs as it is")


_SUBMITS = "learners cannot submit to Slurm: submit that job yourself, after this one by its batch.dependency"
_STEP = "srun of the learner starts its tasks: batch.slurm_environment"
_SENT = (
    "srun of the first learner sends the others their tasks: batch.slurm_environment, take-steps; on Kubernetes that "
    "needs a claim, and without one each pod runs the whole script and starts its own tasks"
)
_VARIABLES = re.compile(r"\bSLURM_\w+")
_SETS = re.compile(r"(?<![\w$-])(\w+)\+?:?=")
_REMARKS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"\bscontrol\s+requeue"), "it is refused: the platform restarts jobs; batch.retry sets how often"),
    (re.compile(r"\bscontrol\s+(update|hold|release|suspend|resume|top|notify)\b"),
     "it asks Slurm, which learners cannot reach"),
    (re.compile(r"(?<![\w./-])(sbatch|salloc)(?![\w.-])"), _SUBMITS),
    (re.compile(r"(?<![\w./-])(scancel|squeue|sacct|sinfo)(?![\w.-])"), "it asks Slurm, which learners cannot reach"),
    (re.compile(r"(^|[\s;&|(/])(apptainer|singularity|docker|podman|enroot)\s"),
     "it runs as it is; a container in that of the learner likely does not start: name the image by --image, and take "
     "what starts one out of the line"),
    (re.compile(r"^\s*(module|ml)\b"), f"it runs as it is; {_MODULES}"),
    (re.compile(r"^\s*(source|\.|conda|mamba|micromamba)\s"), f"it runs as it is; {_ENVIRONMENT}"),
    (re.compile(r"(^|[;&|(]\s*)eval\s+\S*(\$\(|`)\S*(conda|mamba)\s"), f"it runs as it is; {_ENVIRONMENT}"),
    (re.compile(r"\bsrun\b"), _STEP),
    (re.compile(r"^\s*(cd|pushd)\s+\"?(/|~|\$\{?HOME\b)"), f"it runs as it is; {_DIRECTORY}"),
    (_VARIABLES, "the learner's variables of Slurm: batch.slurm_environment"),
)  # fmt: skip


def _steps(lines: Sequence[Line]) -> bool:
    return any(re.search(r"(?<![\w./-])srun\b", text) for text in executed(lines))


def _whole_file(text: str, whose: str) -> tuple[Judged, ...]:
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")), 0)
    if not first:
        return ()
    shown = f"lines {first} to {len(text.splitlines())}"
    return (Judged(Origin.BODY, first, shown, Fate.MAPPED, "framework.command", f"{whose} runs them as they are"),)

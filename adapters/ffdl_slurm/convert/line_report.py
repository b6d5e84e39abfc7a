"""Reports what becomes of each line of a script in a learner: what it lacks there, and what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ffdl_batch.domain.conversion import Fate, Judged, Origin
from ffdl_slurm.convert.shell_tree import Line, Script, within
from ffdl_slurm.convert.shell_variables import Known, defaults_in, why_default, with_remark
from ffdl_slurm.convert.task_layout import Layout

_MODULES = "the image has to have modules and what they load, or choose one that has the software: --image"
_ENVIRONMENT = "the image has to have this environment, or choose one that has the software: --image"
_DIRECTORY = "the directory has to be there for learners, which see their image"
_SUBMITS = "learners cannot submit to Slurm: submit that job yourself, after this one by its batch.dependency"
_STEP = "srun of the learner starts its tasks: batch.slurm_environment"
_SENT = (
    "srun of the first learner sends the others their tasks: batch.slurm_environment, take-steps; on Kubernetes that "
    "needs a claim, and without one each pod runs the whole script and starts its own tasks"
)
_LOGIN = "learners have no sshd: start programs on the other nodes with srun"
_HOSTS = "its workers are started by ssh or by a list of hosts, and learners have no sshd: use srun, torchrun or mpirun"
_VARIABLES = re.compile(r"\bSLURM_\w+")
_REMARKS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"\bscontrol\s+requeue"), "it is refused: the platform restarts jobs; batch.retry sets how often"),
    (re.compile(r"\bscontrol\s+(update|hold|release|suspend|resume|top|notify)\b"),
     "it asks Slurm, which learners cannot reach"),
    (re.compile(r"(?<![\w./-])(sbatch|salloc)(?![\w.-])"), _SUBMITS),
    (re.compile(r"(?<![\w./-])(scancel|squeue|sacct|sinfo|seff)(?![\w.-])"),
     "it asks Slurm, which learners cannot reach"),
    (re.compile(r"(?<![\w./-])(ssh|pdsh|clush|pssh|rsh)\s"), _LOGIN),
    (re.compile(r"(?<![\w.-])(horovodrun|mpirun|mpiexec|orterun|mpirun_rsh)\s.*?\s(-H|--?hosts?|--?hostfile|--?machinefile)[\s=]"),
     _HOSTS),
    (re.compile(r"(?<![\w.-])(shifter|podman-hpc)\s"), "learners start no container: name its image by --image"),
    (re.compile(r"(^|[\s;&|(/])(apptainer|singularity|docker|podman|enroot)\s+(?!--version|version)"),
     "it runs as it is; a container in that of the learner likely does not start: name the image by --image, and take "
     "what starts one out of the line"),
    (re.compile(r"(^|[;&|]\s*)(module|ml)\b"), _MODULES),
    (re.compile(r"(^|[;&|]\s*)(source|\.|conda|mamba|micromamba)\s"), _ENVIRONMENT),
    (re.compile(r"(^|[;&|(]\s*)eval\s+\S*(\$\(|`)\S*(conda|mamba)\s"), _ENVIRONMENT),
    (re.compile(r"\bsrun\b"), _STEP),
    (re.compile(r"^\s*(cd|pushd)\s+\"?(/|~|\$\{?HOME\b)"), _DIRECTORY),
    (_VARIABLES, "the learner's variables of Slurm: batch.slurm_environment"),
)  # fmt: skip
_SUBMIT_DIRECTORY = re.compile(r"cd (\"?\$\{?SLURM_SUBMIT_DIR\}?\"?|\"?\$PWD\"?|\.)/?")
_HOST_PATH = re.compile(
    r"(?<![^\s\"'=(<>,|&;:@])(?:~(?=/)|\$\{?HOME\}?(?=[/\s\"';]|$)"
    r"|/(?!(?:usr|bin|sbin|lib|lib64|dev|proc|sys|tmp|job)(?:/|\b))[A-Za-z_][\w.+@%-]*)(?:/[^\s\"';|&()<>,:]*)?"
)
_ARGUMENT = re.compile(r"[1-9]|[@*#]")
_SETS = re.compile(r"(?<![\w$-])(\w+)\+?:?=")


def report_lines(
    script: Script, layout: Layout, given: Known, changed: Mapping[int, Judged], *, whole: bool
) -> Iterator[Judged]:
    """Yield what becomes of each line. `changed` is what became of lines that are not in the command as they are.
    `whole`: the script runs whole, in the first learner."""
    before: dict[str, str | None] = dict(given)
    for line, text in zip(script.lines, script.executed(), strict=True):
        names = list(defaults_in(line.text, before))
        before |= dict.fromkeys(match[1] for match in _SETS.finditer(text))
        one = changed.get(line.number) or _as_it_is(line, text, layout, whole=whole)
        if names:
            one = with_remark(one, why_default(names))
        if _DIRECTORY not in one.reason and _ENVIRONMENT not in one.reason and one.fate is not Fate.DROPPED:
            one = _with_paths(one, text)
        yield one


def _as_it_is(line: Line, ran: str, layout: Layout, *, whole: bool) -> Judged:
    to = "framework.command"
    if _SUBMIT_DIRECTORY.fullmatch(line.text):
        reason = "the command starts in its copy of the model"
        return Judged(Origin.BODY, line.number, line.text, Fate.MAPPED, to, reason)
    for pattern, reason in _REMARKS:
        if pattern.search(line.text if pattern is _VARIABLES else ran):
            if reason == _SUBMITS:
                return Judged(Origin.BODY, line.number, line.text, Fate.DROPPED, "", reason)
            if pattern is _VARIABLES and not whole:
                break
            why = _SENT if reason == _STEP and layout.nodes > 1 and whole else reason
            return Judged(Origin.BODY, line.number, line.text, Fate.APPROXIMATED, to, why)
    return Judged(Origin.BODY, line.number, line.text, Fate.MAPPED, to, "it runs as it is" if whole else "")


def _with_paths(one: Judged, text: str) -> Judged:
    """Add the paths of the host that a line names."""
    found = _HOST_PATH.finditer(text)
    paths = list(dict.fromkeys(match[0] for match in found if not _continues_word(text, match.start())))
    if not paths:
        return one
    shown = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    return with_remark(
        one, f"learners see their image and no directory of the host ({shown}): name data under data_stores"
    )


def _continues_word(text: str, start: int) -> bool:
    """Return whether the quote before a path ends a word that the path continues: ``"$TMPDIR"/x``."""
    quote = text[start - 1 : start]
    return quote in ("'", '"') and text[start - 2 : start - 1] != quote and text.count(quote, 0, start) % 2 == 0


def missing_arguments(script: Script, arguments: Sequence[str]) -> dict[int, str]:
    """Return, by line, the remark on arguments that the script reads and is not given."""
    found: dict[int, str] = {}
    for one in script.reads:
        if not _ARGUMENT.fullmatch(one.name) or within(one.start, script.functions):
            continue
        if not arguments or (one.name.isdigit() and int(one.name) > len(arguments)):
            found.setdefault(one.line, f"${one.name} is empty, as the script is given no such argument")
    return found

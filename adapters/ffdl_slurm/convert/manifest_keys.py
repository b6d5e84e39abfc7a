"""The manifest's keys for what sbatch's options say."""

from __future__ import annotations

import re
import signal as signals

from ffdl_batch.domain.job.array import read_indexes
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.domain.quantity import format_size, format_time_limit, parse_time_limit
from ffdl_batch.ports.conversion import CannotConvert, Fate
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert.directives import Given
from ffdl_slurm.convert.option_dispositions import Options
from ffdl_slurm.convert.task_layout import Layout

_AS_THEY_ARE = (
    "partition", "account", "qos", "constraint", "reservation", "priority", "nodelist", "exclude", "begin", "comment"
)  # fmt: skip
_ENDLESS = frozenset({"UNLIMITED", "INFINITE", "INFINITY", "0", "-1"})
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?(?:SIG)?([A-Z0-9+]+)(?:@\d{1,5})?", re.ASCII)
_UNTRAPPABLE = frozenset({"KILL", "STOP", "9", "19"})
_DEPENDENCY = re.compile(
    r"(after|afterany|afterburstbuffer|aftercorr|afternotok|afterok|expand):[\w.+-]+(:[\w.+-]+)*|singleton", re.ASCII
)
_EVENTS = frozenset(
    [
        "NONE",
        "BEGIN",
        "END",
        "FAIL",
        "REQUEUE",
        "ALL",
        "INVALID_DEPEND",
        "STAGE_OUT",
        "TIME_LIMIT",
        "TIME_LIMIT_90",
        "TIME_LIMIT_80",
        "TIME_LIMIT_50",
        "ARRAY_TASKS",
    ]
)


def resources(layout: Layout) -> dict[str, object]:
    """What each learner gets, one on each node."""
    found: dict[str, object] = {"learners": layout.nodes, "cpus": layout.cpus, "gpus": layout.gpus}
    if layout.gpus and layout.gpu_type:
        found["gpu_type"] = layout.gpu_type
    if layout.memory_mib is not None:
        found["memory"] = format_size(layout.memory_mib * 1024**2)
    return found


def batch_keys(options: Options, layout: Layout) -> dict[str, object]:
    """`batch:`, without what the body needs. Raises CannotConvert."""
    found: dict[str, object] = {}
    found |= _time(options)
    found |= {name: line_of(options, name) for name in _AS_THEY_ARE if options.text(name)}
    found |= _array(options)
    found |= _dependency(options)
    if options.get("hold"):
        found["hold"] = True
    found |= _requeue(options)
    found |= _signal(options)
    found |= _notify(options)
    if options.text("output"):
        found["output"] = line_of(options, "output")
    if options.text("open-mode") == "append" or options.text("open-mode") == "a":
        options.map("open-mode", "", "output is always appended")
    if layout.gres:
        found["gres"] = dict(layout.gres)
    found |= _export(options)
    args = _args(options)
    if args:
        found["slurm"] = {"args": args}
    return found


def line_of(options: Options, name: str) -> str:
    """An option's text as one line without control characters, which no manifest has."""
    text = options.text(name)
    if text.isprintable():
        return text
    options.near(name, "its control characters are blanks in the manifest")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _time(options: Options) -> dict[str, object]:
    one = options.get("time")
    if one is None:
        return {}
    if one.value.strip().upper() in _ENDLESS:
        options.drop("time", "no limit of its own: the site's counts")
        return {}
    if re.fullmatch(r"[0:-]*0[0:-]*", one.value.strip()):
        options.drop("time", "zero is no limit of its own: the site's counts")
        return {}
    try:
        return {"time": format_time_limit(parse_time_limit(one.value.strip()))}
    except ValueError as error:
        raise CannotConvert(f"{one.text.strip()!r}: {error}", "", one.line) from None


def _array(options: Options) -> dict[str, object]:
    one = options.get("array")
    if one is None:
        return {}
    try:
        read_indexes(one.value.strip())
    except ValueError as error:
        raise CannotConvert(f"{one.text.strip()!r}: {error}", "", one.line) from None
    return {"array": one.value.strip()}


def _dependency(options: Options) -> dict[str, object]:
    text = options.text("dependency")
    if not text:
        return {}
    if not all(_DEPENDENCY.fullmatch(item) for item in re.split(r"[,?]", text)):
        options.drop("dependency", "it is no list of conditions; write it into batch.dependency, as afterok:JOB")
        return {}
    return {"dependency": text}


def _requeue(options: Options) -> dict[str, object]:
    again, never = options.get("requeue"), options.get("no-requeue")
    if again is not None and again.value:
        options.near("requeue", f"{again.value} is left out")
    return {"requeue": True} if again else {"requeue": False} if never else {}


def _signal(options: Options) -> dict[str, object]:
    one = options.get("signal")
    if one is None:
        return {}
    match = _SIGNAL.fullmatch(one.value.strip().upper())
    if match is None or not (match[1].isdigit() or f"SIG{match[1]}" in signals.Signals.__members__):
        raise CannotConvert(f"{one.text.strip()!r} is no signal", "write [B:]USR1[@seconds]", one.line)
    if match[1] in _UNTRAPPABLE:
        options.drop("signal", f"no program can catch {match[1]}")
        return {}
    return {"signal": one.value.strip().upper().replace("SIG", "")}


def _notify(options: Options) -> dict[str, object]:
    found: dict[str, object] = {}
    if options.text("mail-user"):
        found["mail"] = line_of(options, "mail-user")
    words = [word.strip().upper() for word in options.text("mail-type").split(",") if word.strip()]
    unknown = [word for word in words if word not in _EVENTS]
    if unknown:
        options.near("mail-type", f"{', '.join(unknown)} is no event that mail is sent for, and is left out")
    events = [word for word in words if word in _EVENTS]
    if events:
        found["events"] = events
    return {"notify": found} if found else {}


def _export(options: Options) -> dict[str, object]:
    """``ALL``, ``NONE``, ``NAME`` and ``NAME=value``: values go to `env`, names are read when the job is submitted."""
    one = options.get("export")
    if one is None:
        return {}
    env: dict[str, object] = {}
    read: dict[str, object] = {}
    left: list[str] = []
    for item in split_export(one):
        name, equals, value = item.partition("=")
        if item.upper() in ("ALL", "NONE", "NIL"):
            continue
        if why_refused(name) or (equals and name in PROTECTED):
            left.append(name)
        elif equals:
            env[name] = value
        else:
            read[name] = f"${{env:{name}}}"
    if left:
        options.near("export", f"{', '.join(left)} cannot be given to a learner")
    elif read:
        options.near("export", "the variable has to be there when the job is submitted", "batch.secrets")
    elif not env and one.value.upper() in ("NONE", "NIL"):
        options.map("export", "", "a learner's environment is clean")
    elif env and "ALL" not in one.value.upper().split(","):
        options.map("export", "batch.env")
    return {key: value for key, value in (("env", env), ("secrets", read)) if value}


def split_export(one: Given) -> list[str]:
    """At commas that are not quoted (sbatch(1), --export)."""
    return [
        match[0].replace("'", "").replace('"', "") for match in re.finditer(r"(?:'[^']*'|\"[^\"]*\"|[^,])+", one.value)
    ]


def _args(options: Options) -> list[str]:
    found = []
    for one in options.all():
        if one.option.is_passed and options.fate(one.option.name) is not Fate.DROPPED:
            found.append(f"--{one.option.name}={one.value}" if one.value else f"--{one.option.name}")
    return found

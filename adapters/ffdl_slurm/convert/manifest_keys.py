"""Converts options of sbatch to keys of a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ffdl_batch.domain.conversion import CannotConvert, Fate, Origin
from ffdl_batch.domain.job.array import read_indexes
from ffdl_batch.domain.job.environment_variables import why_refused
from ffdl_batch.domain.quantity import (
    WHOLE_NODE,
    format_gres_count,
    format_size,
    format_time_limit,
    parse_requested_time,
)
from ffdl_batch.domain.sbatch.option_table import TABLE, OptionRow
from ffdl_batch.domain.sbatch.values import (
    EXPEDITE,
    UNTRAPPABLE,
    check_dependency,
    is_flag_set,
    read_events,
    split_signal,
)
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_slurm.convert.directives import Given, Options
from ffdl_slurm.convert.task_layout import Layout


def resources(layout: Layout) -> dict[str, object]:
    """Return the resources of each learner; every node has one learner."""
    found: dict[str, object] = {"learners": layout.nodes, "cpus": layout.cpus, "gpus": layout.gpus}
    if layout.gpus and layout.gpu_type:
        found["gpu_type"] = layout.gpu_type
    if layout.memory_mib is not None:
        size = layout.memory_mib * 1024**2
        found["memory"] = "all" if size == WHOLE_NODE else format_size(size)
    return found


def batch_keys(options: Options, layout: Layout) -> dict[str, object]:
    """Return `batch:`, without what the body needs. Raises CannotConvert."""
    found: dict[str, object] = {}
    for row in TABLE:
        if row.field and options.get(row.name) is not None:
            _put(found, row.key, _value(options, row))
    if options.text("open-mode") == "append" or options.text("open-mode") == "a":
        options.map("open-mode", "", "output is always appended")
    if layout.gres:
        found["gres"] = {name: _count(count) for name, count in layout.gres.items()}
    found |= _export(options)
    args = _args(options)
    if args:
        found["slurm"] = {"args": args}
    return found


def _count(count: int) -> int | str:
    """Return a count of a generic resource: a number, or a text with a unit."""
    text = format_gres_count(count)
    return int(text) if text.isdigit() else text


def _put(found: dict[str, object], key: str, value: object) -> None:
    """Set `key`, which begins with ``batch.``, unless there is no value."""
    if value is None or value == "":
        return
    _, *outer, last = key.split(".")
    for name in outer:
        inner = found.setdefault(name, {})
        assert isinstance(inner, dict)
        found = inner
    found[last] = value


def _value(options: Options, row: OptionRow) -> object:
    """Return the value of the key; None if the option is dropped."""
    if row.name in _READERS:
        return _READERS[row.name](options)
    return line_of(options, row.name) if row.metavar else row.flag


def line_of(options: Options, name: str) -> str:
    """Return the option's text as one line without control characters, which a manifest cannot hold."""
    text = options.text(name)
    if text.isprintable():
        return text
    options.near(name, "its control characters are blanks in the manifest")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _time(options: Options) -> str:
    one = _given(options, "time")
    text = one.value.strip()
    if re.fullmatch(r"[0:-]*0[0:-]*", text):
        text = "UNLIMITED"  # as sbatch takes a limit of 0
    try:
        return format_time_limit(parse_requested_time(text))
    except ValueError as error:
        raise CannotConvert(f"{one.text.strip()!r}: {error}", "", one.line) from None


def _array(options: Options) -> str:
    one = _given(options, "array")
    try:
        read_indexes(one.value.strip())
    except ValueError as error:
        raise CannotConvert(f"{one.text.strip()!r}: {error}", "", one.line) from None
    return one.value.strip()


def _dependency(options: Options) -> str | None:
    text = options.text("dependency")
    try:
        check_dependency(text)
    except ValueError:
        if text:
            options.drop("dependency", "it is not a list of conditions; write it into batch.dependency, as afterok:JOB")
        return None
    return text


def _requeue(options: Options) -> bool | str:
    again = _given(options, "requeue")
    word = again.value.strip().lower()
    if word == EXPEDITE:
        return EXPEDITE
    if word and not (again.origin is Origin.ENVIRONMENT and is_flag_set(word)):
        raise CannotConvert(f"{again.text.strip()!r}: sbatch knows --requeue and --requeue=expedite", "", again.line)
    return True


def _signal(options: Options) -> str | None:
    one = _given(options, "signal")
    text = one.value.strip().upper().replace("SIG", "")
    try:
        name = split_signal(text)[0]
    except ValueError:
        raise CannotConvert(f"{one.text.strip()!r} is not a signal", "write [B:]USR1[@seconds]", one.line) from None
    if name in UNTRAPPABLE:
        options.drop("signal", f"no program can catch {name}")
        return None
    return text


def _events(options: Options) -> list[str] | None:
    events, unknown = read_events(options.text("mail-type").split(","))
    if len(_given(options, "mail-type").text.split(",")) < len(options.text("mail-type").split(",")):
        options.map(
            "mail-type", "batch.notify.events", "with those before it; Slurm 25.05 and later take the last alone"
        )
    if unknown:
        options.near("mail-type", f"{', '.join(unknown)} is not an event that mail is sent for, and is left out")
    return list(events) or None


def _given(options: Options, name: str) -> Given:
    one = options.get(name)
    assert one is not None  # readers are for options that were given
    return one


_READERS: Mapping[str, Callable[[Options], object]] = {
    "time": _time,
    "array": _array,
    "dependency": _dependency,
    "requeue": _requeue,
    "signal": _signal,
    "mail-type": _events,
}


def _export(options: Options) -> dict[str, object]:
    """Convert ``ALL``, ``NONE``, ``NAME`` and ``NAME=value``: values go to `env`, the values of names are read when the
    job is submitted."""
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
    """Split at commas that are not quoted (sbatch(1), --export)."""
    return [
        match[0].replace("'", "").replace('"', "") for match in re.finditer(r"(?:'[^']*'|\"[^\"]*\"|[^,])+", one.value)
    ]


def _args(options: Options) -> list[str]:
    found = []
    shared = options.get("oversubscribe")
    if shared is not None and options.get("exclusive") is not None:
        message = "sbatch refuses --exclusive beside --oversubscribe"
        raise CannotConvert(message, "leave one out", shared.line)
    for one in options.all():
        if one.option.is_passed and options.fate(one.option.name) is not Fate.DROPPED:
            found.append(f"--{one.option.name}={one.value}" if one.value else f"--{one.option.name}")
    return found

"""The child process that loads libslurm, started by :mod:`ffdl_slurm.gateways.pyslurm_gateway`.

libslurm may call ``fatal()``, which ends the process, and it keeps the credentials of the process's uid, so it must not
be loaded into the daemon. Requests are lines of JSON on standard input: ``{"call": …, …}``. Answers are lines on
standard output: ``{"ok": …}`` or ``{"error": …, "kind": "slurm" | "request" | "import"}``. Nothing else may be written
there, so standard output is redirected to standard error before libslurm is loaded. Fields are those of pyslurm 25.11.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from ffdl_batch.domain.sbatch.script_options import SbatchOption
from ffdl_slurm.sbatch_script import parse_options

# These are the names of one release of one library, which only this process uses, so they are no column of
# ffdl_batch.domain.sbatch.option_table.
_PLAIN = {
    "account": "account", "array": "array", "begin": "begin_time", "chdir": "working_directory", "comment": "comment",
    "constraint": "constraints", "cpus-per-task": "cpus_per_task", "deadline": "deadline",
    "dependency": "dependencies", "error": "standard_error", "exclude": "excluded_nodes", "gres": "gres_per_node",
    "gres-flags": "gres_binding", "job-name": "name", "licenses": "licenses", "mail-type": "mail_types",
    "mail-user": "mail_user", "mem": "memory_per_node", "nice": "nice", "nodelist": "required_nodes",
    "nodes": "nodes", "ntasks": "ntasks", "ntasks-per-node": "ntasks_per_node", "open-mode": "log_files_open_mode",
    "output": "standard_output", "partition": "partitions", "priority": "priority", "qos": "qos",
    "reservation": "reservations", "threads-per-core": "threads_per_core", "time": "time_limit",
    "time-min": "time_limit_min", "tmp": "temporary_disk_per_node", "wckey": "wckey",
}  # fmt: skip
_FLAGS: dict[str, tuple[str, object]] = {
    "contiguous": ("requires_contiguous_nodes", True),
    "exclusive": ("resource_sharing", "no"),
    "hold": ("priority", 0),
    "no-requeue": ("is_requeueable", False),
    "requeue": ("is_requeueable", True),
    "spread-job": ("spreads_over_nodes", True),
    "use-min-nodes": ("use_min_nodes", True),
}
# pyslurm exports and propagates nothing by itself, and a job that asks for no mail gets none.
_WITHOUT_EFFECT = {"export": "ALL", "propagate": "NONE", "mail-type": "NONE"}


class Unmapped(ValueError):
    """An option that pyslurm's description has no field for."""


def describe_fields(options: list[SbatchOption]) -> dict[str, object]:
    """Return the fields of pyslurm's JobSubmitDescription for these options. Raises Unmapped with the option."""
    fields: dict[str, object] = {}
    for option in options:
        if _WITHOUT_EFFECT.get(option.name, "") == option.value:
            continue
        if option.name in _PLAIN and option.value is not None:
            fields[_PLAIN[option.name]] = option.value
        elif option.name in _FLAGS and option.value is None:
            held_back, value = _FLAGS[option.name]
            fields[held_back] = value
        elif option.name == "signal" and option.value:
            fields["signal"] = _signal_text(option.value)
        else:
            raise Unmapped(f'--{option.name} cannot be carried by pyslurm; use gateway = "cli" or leave it out')
    return fields


def _signal_text(value: str) -> str:
    """Return a value such as ``[B:]URG@60`` as pyslurm reads it: names with SIG, numbers unchanged."""
    head, colon, rest = value.rpartition(":")
    name, at, seconds = rest.partition("@")
    if not name.isdigit() and not name.startswith("SIG"):
        name = f"SIG{name}"
    return f"{head}{colon}{name}{at}{seconds}"


def _submit(pyslurm: Any, request: Mapping[str, Any]) -> object:
    script = request["script"]
    description = pyslurm.JobSubmitDescription(
        **describe_fields(parse_options(script)), script=script, environment=dict(request["environment"])
    )
    job = str(description.submit())
    # The reply file is written before the answer, because it outlives both the daemon and this process.
    descriptor = os.open(request["reply"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(job + "\n")
    return job


def _list(pyslurm: Any, request: Mapping[str, Any]) -> object:
    uid, names = os.getuid(), frozenset(request.get("names", ()))
    jobs = pyslurm.Jobs.load().values()
    return [_row(job) for job in jobs if job.user_id == uid and (not names or job.name in names)]


def _task_text(job: Any) -> str:
    """Return a task, the tasks that wait, or "" for an array whose waiting tasks were all cancelled.

    pyslurm has None for task 0 (seen with 25.11.2), as for a record without a task. But such a record has the array's
    id, and is cancelled.
    """
    if job.array_task_id is not None:
        return f"_{job.array_task_id}"
    if job.array_tasks_waiting:
        return f"_[{job.array_tasks_waiting}]"
    return "" if job.id == job.array_id and job.state == "CANCELLED" else "_0"


def _row(job: Any) -> dict[str, str]:
    number = str(job.id)
    if job.array_id:
        number = f"{job.array_id}{_task_text(job)}"
    return {
        "number": number, "name": job.name or "", "state": job.state or "",
        "exit_code": f"{job.exit_code or 0}:{job.exit_code_signal or 0}", "restarts": str(job.requeue_count or 0),
        "submitted": str(job.submit_time or ""), "started": str(job.start_time or ""),
        "ended": str(job.end_time or ""), "nodes": job.allocated_nodes or "", "reason": job.state_reason or "",
    }  # fmt: skip


def _cancel(pyslurm: Any, request: Mapping[str, Any]) -> object:
    pyslurm.Job(int(request["job"])).cancel()
    return None


_CALLS: dict[str, Callable[[Any, Mapping[str, Any]], object]] = {
    "submit": _submit,
    "list": _list,
    "cancel": _cancel,
}


def _answer(pyslurm: Any, line: str) -> dict[str, object]:
    try:
        request = json.loads(line)
        return {"ok": _CALLS[request["call"]](pyslurm, request)}
    except pyslurm.RPCError as error:
        return {"error": str(error), "kind": "slurm"}
    except (ValueError, KeyError, TypeError, OSError) as error:
        return {"error": str(error), "kind": "request"}


def main() -> int:
    """Answer requests until standard input ends."""
    answers: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        import pyslurm
    except ImportError as error:
        _send(answers, {"error": str(error), "kind": "import"})
        return 1
    _send(answers, {"ok": str(getattr(pyslurm, "__version__", ""))})
    for line in sys.stdin:
        _send(answers, _answer(pyslurm, line))
    return 0


def _send(answers: IO[str], answer: Mapping[str, object]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())

"""scontrol, scancel and srun of the fake Slurm."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from tests.fakes.slurm import arrays
from tests.fakes.slurm.jobs import end_processes, send, task_pids
from tests.fakes.slurm.state import ENDED, STATE, begin, complain, load, locked, option, records, save, spoil, update

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from typing import Any


def scontrol() -> int:
    """Requeue, hold, release, update; and forgetting a job, as MinJobAge would."""
    spoiled = spoil("scontrol", begin("scontrol"))
    if spoiled is not None:
        return spoiled
    verb, *words = sys.argv[1:]
    if (verb, *words) == ("show", "config"):
        print("Configuration data as of now\nMaxArraySize            = 1001")
        return 0
    if "show" in (verb, *words):
        shown = STATE / f"show-{sys.argv[-1]}"
        if not shown.exists():
            return complain("scontrol", f"nothing is known of {sys.argv[-1]}")
        sys.stdout.write(shown.read_text())
        return 0
    if verb == "fake-forget":
        path = STATE / "jobs" / f"{words[0]}.json"
        path.rename(STATE / "gone" / path.name)
        return 0
    fields = dict(word.partition("=")[::2] for word in words) if verb == "update" else {"JobId": words[0]}
    record = load(fields["JobId"])
    if record is None:
        return complain("scontrol", "Invalid job id specified")
    if record["state"] in ENDED:
        return complain("scontrol", f"Job has already finished for job {record['id']}")
    return change(verb, record, fields)


def change(verb: str, record: dict[str, Any], fields: dict[str, str]) -> int:
    """What scontrol does to a job that lives."""
    job = record["id"]
    if verb == "requeue":
        return requeue(record)
    if verb in ("hold", "release"):
        update(job, held=verb == "hold", reason="JobHeldUser" if verb == "hold" else "None", split=True)
    elif verb != "update":
        return complain("scontrol", f"invalid keyword: {verb}")
    elif "NodeList" in fields and record["state"] == "PENDING":
        update(job, required=fields["NodeList"], split=True)  # as 26.05 does: it becomes ReqNodeList
    elif "NodeList" in fields:
        update(job, nodes=fields["NodeList"])
    elif record["state"] != "PENDING":
        return complain("scontrol", f"Job is no longer pending execution for job {job}")
    else:
        update(job, excluded=fields["ExcNodeList"], split=True)
    return 0


def requeue(record: dict[str, Any]) -> int:
    """Start a running job again under its id."""
    if record["state"] != "RUNNING":
        return complain("scontrol", f"Requested operation is presently disabled for job {record['id']}")
    job = record["id"]
    update(job, state="PENDING", reason="BeginTime", restarts=record["restarts"] + 1, nodes="", start=0, pid=0)
    end_processes(record)
    (STATE / "steps" / job).unlink(missing_ok=True)
    return 0


def scancel() -> int:
    """Signal jobs' tasks, or end them; as in 26.05, KILL without a step ends the job."""
    spoiled = spoil("scancel", begin("scancel"))
    if spoiled is not None:
        return spoiled
    words = [argument.partition(".") for argument in sys.argv[1:] if not argument.startswith("--")]
    found = [(word, job, step) for word, _, step in words for job in arrays.resolve(STATE / "jobs", word) or [""]]
    return max(stop(word, job, step) for word, job, step in found)


def stop(word: str, job: str, step: str) -> int:
    """What scancel does to one job."""
    record = load(job)
    if record is None:
        return complain("scancel", f"Kill job error on job id {word}: Invalid job id specified")
    if record["state"] in ENDED:
        return complain("scancel", f"Kill job error on job id {job}: Job/step already completing or completed", 0)
    if option("state") not in ("", record["state"]):
        said = f"Job state {record['state']} != filter state {option('state')}: Cannot signal job"
        return complain("scancel", f"Kill job error on job id {job}: {said}", 0)
    name = option("signal")
    if name and (step or name != "KILL"):
        if record["state"] == "PENDING" and not step:
            return complain(
                "scancel", f"Kill job error on job id {job}: Job can not be altered now, try again later", 228
            )
        for pid in task_pids(job):
            send(pid, signal.Signals[f"SIG{name}"])
        return 0
    if arrays.is_waiting(record, record.get("array", "")):
        drop(job)
        return 0
    update(job, state="CANCELLED", end=int(time.time()), exit="0:15")
    end_processes(record)
    return 0


def drop(job: str) -> None:
    """Take a waiting task out of its array's list."""
    with locked():
        record = load(job)
        if record is None or not arrays.is_waiting(record, record["array"]):
            return
        (STATE / "jobs" / f"{job}.json").unlink()
        if not any(arrays.is_waiting(other, record["array"]) for other in records("jobs")):
            rest = {key: value for key, value in record.items() if key not in ("array", "task", "limit")}
            now = int(time.time())
            save({**rest, "id": record["array"], "state": "CANCELLED", "start": now, "end": now})


def srun() -> int:
    """Run the command once for each task, each with its SLURM_NODEID."""
    begin("srun")
    arguments = sys.argv[1:]
    options = {}
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0)[2:].partition("=")
        options[name] = value
    gres = re.search(r"gpu:(?:[^:,]+:)?(\d+)", options.get("gres", ""))
    gpus = ",".join(str(n) for n in range(int(gres[1]))) if gres else ""
    tasks = []

    def note() -> None:
        """Before the task does anything by which others know that it can be signalled."""
        with (STATE / "steps" / os.environ["SLURM_JOB_ID"]).open("a") as file:
            file.write(f"{os.getpid()}\n")

    for rank in range(int(options["ntasks"])):
        env = {**os.environ, "SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank), "CUDA_VISIBLE_DEVICES": gpus}
        task = subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, preexec_fn=note)  # noqa: PLW1509 - no threads
        tasks.append(task)
    return max(abs(task.wait()) for task in tasks)

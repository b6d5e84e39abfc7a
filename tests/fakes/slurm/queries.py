"""squeue, sacct and sinfo of the fake Slurm."""

from __future__ import annotations

import json
import os
import sys
import time

from tests.fakes.slurm import arrays
from tests.fakes.slurm.state import ENDED, STATE, begin, complain, load, option, own, snapshot, spoil

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from typing import Any

MAX_FED_JOB_ID = 0xFFFFFFFD
"""Of slurm/slurm.h."""


def stamp(seconds: int) -> str:
    """As SLURM_TIME_FORMAT asks."""
    if not seconds:
        return "N/A"
    form = os.environ.get("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S")
    return time.strftime(form, time.localtime(seconds)) if form != "%s" else str(seconds)


TITLES = {"JobArrayID": "JOBID", "State": "STATE", "exit_code": "EXIT_CODE", "RestartCnt": "RESTART_COUNT",
          "SubmitTime": "SUBMIT_TIME", "StartTime": "START_TIME", "EndTime": "END_TIME", "NodeList": "NODELIST",
          "Reason": "REASON", "Name": "NAME"}  # fmt: skip


def values(record: dict[str, Any]) -> dict[str, str]:
    """A record by the names that squeue and sacct have for its fields."""
    times = {"Submit": stamp(record["submit"]), "Start": stamp(record["start"]), "End": stamp(record["end"])}
    shown = arrays.number(record)
    return {"JobArrayID": shown, "JobID": shown, "State": record["state"], "exit_code": record["exit"],
            "ExitCode": record["exit"], "RestartCnt": str(record["restarts"]), "NodeList": record["nodes"],
            "Reason": record["reason"], "Name": record["name"], "JobName": record["name"], **times,
            "ElapsedRaw": str(int(max(0, (record["end"] or 0) - (record["start"] or 0)))),
            "AllocTRES": record.get("tres", "") if record["start"] else "",
            **{f"{k}Time": v for k, v in times.items()}}  # fmt: skip


def squeue() -> int:
    """List jobs in the format asked for (sizes of 0 with suffixes only)."""
    fault = begin("squeue")
    spoiled = spoil("squeue", fault)
    if spoiled is not None:
        return spoiled
    if option("format"):
        return excluded()
    if option("Format").startswith("UserID:0"):
        return all_users()
    if "--me" not in sys.argv:
        return live()
    fields = [part.partition(":0") for part in option("Format").split(",")]
    assert {"--me", "--states=all", "--all", "--array"} <= set(sys.argv), sys.argv
    print("".join(TITLES[name] + suffix for name, _, suffix in fields))
    wanted = [name for name in option("name").split(",") if name]
    for record in own("jobs"):
        if not wanted or record["name"] in wanted:
            line = "".join(values(record)[name] + suffix for name, _, suffix in fields)
            if fault == "cut":
                sys.stdout.write(line[: len(line) // 2])
                return 0
            if fault == "odd":
                line, fault = line.rpartition("|")[0], ""
            print(line)
            if fault == "half":
                sys.stdout.flush()
                return complain("squeue", "slurm_load_jobs error: Zero Bytes were transmitted or received")
    return 0


def all_users() -> int:
    """Live jobs of all users; `uid` of a record is that of another user."""
    fields = [part.partition(":0")[0] for part in option("Format").split(",")]
    print("|".join({**TITLES, "UserID": "USER"}[name] for name in fields))
    for record in snapshot("jobs"):
        if record["state"] not in ENDED:
            known = {**values(record), "UserID": str(record.get("uid", os.getuid()))}
            print("|".join(known[name] for name in fields))
    return 0


LIVE_TITLES = {"Partition": "PARTITION", "PriorityLong": "PRIORITY", "UserName": "USER", "NumNodes": "NODES",
               "TimeLimit": "TIME_LIMIT", "QOS": "QOS", "Account": "ACCOUNT", "Reservation": "RESERVATION",
               "Dependency": "DEPENDENCY", "tres-per-node": "TRES_PER_NODE", "Licenses": "LICENSES",
               "tres-alloc": "TRES_ALLOC", "tres-per-job": "TRES_PER_JOB", "tres-per-task": "TRES_PER_TASK",
               "tres-per-socket": "TRES_PER_SOCKET", "NumTasks": "TASKS", "Sockets": "SOCKETS_PER_NODE"}  # fmt: skip


def live() -> int:
    """All jobs that wait or run, whoever's; beside those that were submitted the lines of the file `others`."""
    import getpass  # they take a quarter of the time of every other call

    from tests.fakes.slurm.jobs import read_options

    fields = [part.partition(":0")[0] for part in option("Format").split(",")]
    print("|".join({**TITLES, **LIVE_TITLES}[name] for name in fields))
    for record in snapshot("jobs"):
        if record["state"] in ("PENDING", "RUNNING"):
            given = read_options((STATE / "jobs" / f"{record['id']}.sh").read_text())
            more = {"Partition": given.get("partition") or "main", "PriorityLong": str(1000 - int(record["id"])),
                    "UserName": getpass.getuser(), "NumNodes": given.get("nodes", "1"),
                    "TimeLimit": given.get("time", "UNLIMITED"), "QOS": given.get("qos", "normal"), "Account": "ffdl",
                    "Reservation": "(null)", "Dependency": given.get("dependency", "(null)"),
                    "tres-per-node": given.get("gres", "N/A"), "Licenses": "(null)", "tres-alloc": "N/A",
                    "tres-per-job": "N/A", "tres-per-task": "N/A", "tres-per-socket": "N/A", "NumTasks": "1",
                    "Sockets": "*"}  # fmt: skip
            print("|".join({**values(record), **more}[name] for name in fields))
    others = STATE / "others"
    sys.stdout.write(others.read_text() if others.exists() else "")
    return 0


def excluded() -> int:
    """What one job excludes."""
    assert option("format") == "%i|%x", sys.argv
    record = load(option("jobs"))
    if record is None:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    print(f"JOBID|EXC_NODES\n{arrays.number(record)}|{record['excluded']}")
    return 0


def sacct() -> int:
    """List jobs, forgotten ones too."""
    fault = begin("sacct")
    if not (STATE / "accounting").exists():
        sys.stderr.write("Slurm accounting storage is disabled\n")
        return 1
    if fault == "down":
        print("|".join(option("format").split(",")))
        return complain("sacct", "Problem talking to the database: Connection refused", 0)
    spoiled = spoil("sacct", fault)
    if spoiled is not None:
        return spoiled
    ids, names = option("jobs").split(","), option("format").split(",")
    if option("jobs") and (bad := why_no_id(ids)):
        sys.stderr.write(f"sacct: fatal: Bad job/step specified: {bad}\n")
        return 1
    print("|".join(names), end="" if fault == "cut" else "\n")
    if fault == "cut":
        return 0
    wanted = [name for name in option("name").split(",") if name]
    for record in own("gone", "jobs"):
        told = STATE / "accounts" / f"{record['id']}.json"
        record = json.loads(told.read_text()) if told.exists() else record  # noqa: PLW2901
        if record is None:
            continue
        if record["name"] in wanted or (not wanted and record.get("array", record["id"]) in ids):
            print("|".join(values(record)[n] for n in names))
    return 0


def why_no_id(ids: list[str]) -> str:
    """Why sacct of 26.05 takes one of them for no id; "" where they all are some."""
    for text in ids:
        if not text.isdigit():
            return text
        if not 0 < int(text) < MAX_FED_JOB_ID:
            return f"{text}: JobID {'larger than acceptable range' if int(text) else 'can not be zero'}"
    return ""


def sinfo() -> int:
    """The site."""
    if "--version" in sys.argv:
        print("slurm 26.05.5")
        return 0
    spoiled = spoil("sinfo", begin("sinfo"))
    if spoiled is not None:
        return spoiled
    print("PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST")
    for row in json.loads((STATE / "site.json").read_text()):
        print("|".join(row))
    return 0

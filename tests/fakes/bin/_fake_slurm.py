"""A small Slurm made of files and processes, behind real executables, for tests.

The state directory is where $SLURM_CONF lies (the one variable that the adapter hands to every command)::

    jobs/<id>.json   what the controller remembers      jobs/<id>.sh, <id>.env   what it was given
    gone/<id>.json   what only the accounting remembers; the file `accounting` switches accounting on
    steps/<id>       process ids of the job's tasks     calls.log   one JSON line for each command that was run
    faults.json      {"squeue": ["down", …], …}: each entry spoils one call, in order; "x:always" spoils all
    site.json        what sinfo says                    hold       while it exists, accepted jobs stay pending
    accounts/<id>.json   what the accounting says of a job in the place of the truth (null: nothing)
    still            while it exists, accepted jobs get no process at all

Faults of all: down, timeout, no_munge, garbage, binary, big, empty, hang, slow=SECONDS, banner (around the answer). Of
squeue: half (the end is missing, and it says so); of squeue and sacct: cut (the end is missing, in mid-line, and all
is well).
Of sbatch beside them: refuse[=text], lose_reply, untrusted (the reply), hang (after accepting), silent, twice, busy
(accepted at the second try), late[=SECONDS] (accepted so long after the time-out was told). What is listed of others'
jobs (`user` in a record) is what Slurm's --me and --user show: nothing.

Job arrays are in _fake_arrays.py.

sbatch takes further options before the script, which win over the script's; ``--dependency=afterany:ID`` is kept.
scancel takes ``--state`` and ``--signal``; scontrol requeues, holds, releases and updates ExcNodeList.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # for tests that import this file; else it is the script's directory
import _fake_arrays  # type: ignore[import-not-found]

STATE = Path(os.environ.get("SLURM_CONF", "/nowhere/slurm.conf")).parent
CONNECT = "Unable to contact slurm controller (connect failure)"
TIMEOUT = "Socket timed out on send/recv operation"
UNANSWERED = {"down": CONNECT, "timeout": TIMEOUT, "no_munge": "Protocol authentication error"}
NOISE = {
    "garbage": (b"<html>502 Bad Gateway</html>\n", 1),
    "binary": (b"\x00\x01 what a day \xff\xfe\n", 1),
    "empty": (b"", 1),
    "big": (b"#" * 1023 + b"\n", 10 * 1024),
}
BUSY = "Slurm temporarily unable to accept job, sleeping and retrying."
BANNER = b"*** Welcome to the cluster ***\n* maintenance on 2026-12-01 \xa7 see http://intranet *\n"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")


# ------------------------------------------------------------------------------------------------- state


@contextmanager
def locked() -> Iterator[None]:
    """One at a time."""
    with (STATE / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load(job: str) -> dict[str, Any] | None:
    """A job's record; an array's task is named by its array, too."""
    found = _fake_arrays.resolve(STATE / "jobs", job) if "_" in job else [job]
    path = STATE / "jobs" / f"{found[0] if found else job}.json"
    return json.loads(path.read_text()) if path.exists() else None


def save(record: dict[str, Any]) -> None:
    """Replace a job's record."""
    path = STATE / "jobs" / f"{record['id']}.json"
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(record))
    temporary.replace(path)


def update(job: str, **changes: Any) -> None:
    """Change a job's record, unless it has ended."""
    with locked():
        record = load(job)
        if record is not None and record["state"] not in ENDED:
            save({**record, **changes})


def begin(command: str) -> str:
    """Log the call; the fault that spoils it, or ""."""
    call = {"command": command, "argv": sys.argv[1:], "env": dict(os.environ)}
    with locked():
        with (STATE / "calls.log").open("a") as log:
            log.write(json.dumps(call) + "\n")
        path = STATE / "faults.json"
        faults = json.loads(path.read_text()) if path.exists() else {}
        waiting = faults.get(command, [])
        if not waiting:
            return ""
        fault = str(waiting[0])
        if not fault.endswith(":always"):
            faults[command] = waiting[1:]
            path.write_text(json.dumps(faults))
    return fault.removesuffix(":always")


def fail(command: str, fault: str) -> int | None:
    """Act out a fault that any command may have; None = go on."""
    name, _, value = fault.partition("=")
    if name == "slow":
        time.sleep(float(value))
    if name == "no_munge":
        complain(command, 'Munge encode failed: Failed to connect to "/run/munge/munge.socket.2": Connection refused')
        complain(command, "slurm_send_node_msg: auth_g_create: REQUEST has authentication error")
    if name in UNANSWERED:
        kind = "Batch job submission failed" if command == "sbatch" else f"{command}: slurm_load"
        return complain(command, f"{kind}: {UNANSWERED[name]}")
    if name in NOISE:
        line, times = NOISE[name]
        sys.stdout.buffer.write(line * times)
        return 0
    return None


def complain(command: str, text: str, code: int = 1) -> int:
    """Print as Slurm's commands do."""
    sys.stderr.write(f"{command}: error: {text}\n")
    return code


# ------------------------------------------------------------------------------------------------ sbatch


def split_line(line: str) -> list[str]:
    """An #SBATCH line as sbatch splits it: a state machine over characters, after src/sbatch/opt.c."""
    words, word, started, quote, escaped = [], "", False, "", False
    for c in line:
        if escaped:
            word, started, escaped = word + c, True, False
        elif c == "\\":
            escaped = True
        elif quote and c == quote:
            quote = ""
        elif quote:
            word, started = word + c, True
        elif c in "\"'":
            quote, started = c, True
        elif c == "#":
            break
        elif c.isspace():
            if started:
                words.append(word)
            word, started = "", False
        else:
            word, started = word + c, True
    return words + ([word] if started else [])


def read_options(script: str) -> dict[str, str]:
    """The options of a script; "" for flags."""
    found: dict[str, str] = {}
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            text = re.sub("packjob|hetjob", lambda m: " " * len(m[0]), line, flags=re.IGNORECASE)
            for word in split_line(text[len("#SBATCH") :]):
                assert word.startswith("--"), f"sbatch: error: unexpected word {word!r}"
                name, _, value = word[2:].partition("=")
                found[name] = value
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def sbatch() -> int:  # noqa: PLR0911 - one return for each way to fail
    """Accept a script, print its id."""
    fault = begin("sbatch")
    path = sys.argv[-1]
    script = Path(path).read_text()
    if not script.startswith("#!"):
        return complain("sbatch", "This does not look like a batch script.")
    options = read_options(script) | given_options()
    if "--test-only" in sys.argv:
        if fault.startswith("refuse"):
            return complain("allocation failure", "Invalid qos specification")
        sys.stderr.write("sbatch: Job 99 to start at 2026-12-01T00:00:00 using 4 processors on nodes n1\n")
        return 0
    failed = fail("sbatch", fault)
    if failed is not None:
        return failed
    if fault.startswith("refuse"):
        reason = fault.partition("=")[2] or "Invalid account or account/partition combination specified"
        return complain("sbatch", f"Batch job submission failed: {reason}")
    if fault == "silent":
        return 0
    if fault.partition("=")[0] == "late":
        spawn("late", path, fault.partition("=")[2] or "1")
        return complain("sbatch", f"Batch job submission failed: {TIMEOUT}")
    if fault == "busy":
        complain("sbatch", BUSY)
    job = accept(script, options)
    if fault == "twice":
        job = accept(script, options)
    if fault == "lose_reply":
        return complain("sbatch", f"Batch job submission failed: {TIMEOUT}")
    if fault == "untrusted":
        complain("sbatch", "slurm_receive_msg: auth_g_verify: RESPONSE_SUBMIT_BATCH_JOB has authentication error: "
                 "Munge decode failed: Expired credential")  # fmt: skip
        return complain("sbatch", "Batch job submission failed: Protocol authentication error")
    if fault == "hang":
        time.sleep(600)
    around = BANNER if fault == "banner" else b""
    sys.stdout.buffer.write(around + f"{job}\n".encode() + around)
    return 0


def given_options() -> dict[str, str]:
    """Options of the command line but for those that say how to submit."""
    pairs = (argument[2:].partition("=") for argument in sys.argv[1:-1] if argument.startswith("--"))
    return {name: value for name, _, value in pairs if name not in ("parsable", "test-only")}


def accept(script: str, options: dict[str, str]) -> str:
    """Write the job down, or the tasks of an array, and start what runs them."""
    tasks, limit = _fake_arrays.read_tasks(options.get("array", ""))
    with locked():
        counter = STATE / "next"
        job = str(int(counter.read_text()) if counter.exists() else 101)
        counter.write_text(str(int(job) + 1 + len(tasks)))
        (STATE / "jobs" / f"{job}.sh").write_text(script)
        (STATE / "jobs" / f"{job}.env").write_text(json.dumps(dict(os.environ)))
        record = {"id": job, "name": options.get("job-name", "sbatch"), "state": "PENDING", "reason": "None",
                  "exit": "0:0", "submit": int(time.time()), "start": 0, "end": 0, "nodes": "", "restarts": 0,
                  "options": options, "excluded": options.get("exclude", ""), "runner": 0}  # fmt: skip
        ids = {str(task): str(int(job) + place) for place, task in enumerate(tasks, 1)}
        for task, own in ids.items():
            save({**record, "id": own, "array": job, "task": task, "limit": limit})
        if ids:
            (STATE / "jobs" / f"{job}.tasks").write_text(json.dumps(ids))
        else:
            save(record)
    if not (STATE / "still").exists():
        for own in ids.values() or [job]:
            spawn("run", own)
    return job


def spawn(*arguments: str) -> None:
    """A detached process of this module."""
    subprocess.Popen(
        [sys.executable, __file__, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=(STATE / "runner.err").open("a"), start_new_session=True,
    )  # fmt: skip


def run_job(job: str) -> None:
    """Wait until the job may run, run its script, write down its end."""
    update(job, runner=os.getpid())
    while must_wait(load(job)) or not take_turn(job):
        time.sleep(0.02)
    record = load(job)
    if record is None or record["state"] in ENDED:
        return
    options, run, batch = record["options"], record["restarts"], record.get("array", job)
    env = json.loads((STATE / "jobs" / f"{batch}.env").read_text())
    if "array" in record:
        env |= {"SLURM_ARRAY_JOB_ID": batch, "SLURM_ARRAY_TASK_ID": record["task"]}
    env |= {"SLURM_JOB_ID": job, "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": options["nodes"],
            **end_time(options.get("time", ""))}  # fmt: skip
    if run:
        env["SLURM_RESTART_COUNT"] = str(run)
    patterns = {"%": "%", "j": job, "A": batch, "a": record.get("task", "4294967294")}
    output = re.sub("%([%jAa])", lambda m: patterns[m[1]], options["output"])
    with Path(output).open("ab") as out:
        process = subprocess.Popen(
            ["/bin/sh", str(STATE / "jobs" / f"{batch}.sh")],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=options["chdir"], start_new_session=True,
        )  # fmt: skip
    update(job, state="RUNNING", reason="None", start=int(time.time()), nodes="n1", pid=process.pid)
    code = process.wait()
    text = f"0:{-code}" if code < 0 else f"{code}:0"
    if (load(job) or {"restarts": run})["restarts"] != run:
        return  # it was requeued, and this run's end is nobody's business
    update(job, state="COMPLETED" if code == 0 else "FAILED", exit=text, end=int(time.time()),
           reason="None" if code == 0 else "NonZeroExitCode")  # fmt: skip


def take_turn(job: str) -> bool:
    """Whether a task of an array may start: as many others run as may, or it is running from now on."""
    with locked():
        record = load(job)
        if record is None or not record.get("limit") or record["state"] in ENDED:
            return True
        if _fake_arrays.is_full(record, records("jobs")):
            save({**record, "reason": "JobArrayTaskLimit"})
            return False
        save({**record, "state": "RUNNING", "reason": "None", "start": int(time.time()), "nodes": "n1"})
        return True


def must_wait(record: dict[str, Any] | None) -> bool:
    """Whether the job is still held, by the world, a person, the controller, or the end of another job."""
    if record is None or record["state"] in ENDED:
        return False
    after = record["options"].get("dependency", "").rpartition("afterany:")[2].split(",")[0]
    before = load(after) if after else None
    if before is not None and before["state"] not in ENDED:
        update(record["id"], reason="Dependency")
        return True
    return (STATE / "hold").exists() or record.get("held", "hold" in record["options"])


def end_time(limit: str) -> dict[str, str]:
    """The variable that tells a job its end, where it has a time limit (as hours:minutes:seconds)."""
    if not re.fullmatch(r"\d+:\d+:\d+", limit):
        return {}
    hours, minutes, seconds = map(int, limit.split(":"))
    return {"SLURM_JOB_END_TIME": str(int(time.time()) + hours * 3600 + minutes * 60 + seconds)}


# ------------------------------------------------------------------------------------ squeue, sacct, sinfo


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
    shown = _fake_arrays.number(record)
    return {"JobArrayID": shown, "JobID": shown, "State": record["state"], "exit_code": record["exit"],
            "ExitCode": record["exit"], "RestartCnt": str(record["restarts"]), "NodeList": record["nodes"],
            "Reason": record["reason"], "Name": record["name"], "JobName": record["name"], **times,
            **{f"{k}Time": v for k, v in times.items()}}  # fmt: skip


def records(folder: str) -> list[dict[str, Any]]:
    """All records of a folder, by id."""
    paths = sorted((STATE / folder).glob("*.json"), key=lambda p: int(p.stem))
    return [json.loads(path.read_text()) for path in paths]


def own(folder: str) -> list[dict[str, Any]]:
    """Those of the user who asks."""
    return [record for record in records(folder) if not record.get("user")]


def option(name: str) -> str:
    """The value of --name=…; "" where it is not given."""
    return next((a.partition("=")[2] for a in sys.argv if a.startswith(f"--{name}=")), "")


def spoil(command: str, fault: str) -> int | None:
    """Act out a fault of a query; None = go on."""
    failed = fail(command, fault)
    if failed is not None:
        return failed
    if fault == "hang":
        time.sleep(600)
    if fault == "banner":
        sys.stdout.buffer.write(BANNER)
    return None


def squeue() -> int:
    """List jobs in the format asked for (sizes of 0 with suffixes only)."""
    fault = begin("squeue")
    spoiled = spoil("squeue", fault)
    if spoiled is not None:
        return spoiled
    if option("format"):
        return excluded()
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
            print(line)
            if fault == "half":
                sys.stdout.flush()
                return complain("squeue", "slurm_load_jobs error: Zero Bytes were transmitted or received")
    return 0


def excluded() -> int:
    """What one job excludes."""
    assert option("format") == "%i|%x", sys.argv
    record = load(option("jobs"))
    if record is None:
        sys.stderr.write("slurm_load_jobs error: Invalid job id specified\n")
        return 1
    print(f"JOBID|EXC_NODES\n{_fake_arrays.number(record)}|{record['excluded']}")
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
    names = option("format").split(",")
    print("|".join(names), end="" if fault == "cut" else "\n")
    if fault == "cut":
        return 0
    ids, wanted = option("jobs").split(","), [name for name in option("name").split(",") if name]
    for record in own("gone") + own("jobs"):
        told = STATE / "accounts" / f"{record['id']}.json"
        record = json.loads(told.read_text()) if told.exists() else record  # noqa: PLW2901
        if record is None:
            continue
        if record["name"] in wanted or (not wanted and record.get("array", record["id"]) in ids):
            print("|".join(values(record)[n] for n in names))
    return 0


def sinfo() -> int:
    """The site."""
    if "--version" in sys.argv:
        print("slurm 26.05.5")
        return 0
    spoiled = spoil("sinfo", begin("sinfo"))
    if spoiled is not None:
        return spoiled
    print("PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|NODELIST")
    for row in json.loads((STATE / "site.json").read_text()):
        print("|".join(row))
    return 0


def scontrol() -> int:
    """Requeue, hold, release, update; and forgetting a job, as MinJobAge would."""
    spoiled = spoil("scontrol", begin("scontrol"))
    if spoiled is not None:
        return spoiled
    verb, *words = sys.argv[1:]
    if (verb, *words) == ("show", "config"):
        print("Configuration data as of now\nMaxArraySize            = 1001")
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
        update(job, held=verb == "hold", reason="JobHeldUser" if verb == "hold" else "None")
    elif verb != "update":
        return complain("scontrol", f"invalid keyword: {verb}")
    elif record["state"] != "PENDING":
        return complain("scontrol", f"Job is no longer pending execution for job {job}")
    else:
        update(job, excluded=fields["ExcNodeList"])
    return 0


def requeue(record: dict[str, Any]) -> int:
    """Start a running job anew under its id."""
    if record["state"] != "RUNNING":
        return complain("scontrol", f"Requested operation is presently disabled for job {record['id']}")
    job = record["id"]
    update(job, state="PENDING", reason="BeginTime", restarts=record["restarts"] + 1, nodes="", start=0, pid=0)
    end_processes(record)
    (STATE / "steps" / job).unlink(missing_ok=True)
    spawn("run", job)
    return 0


# ------------------------------------------------------------------------------------- scancel, srun, apptainer


def scancel() -> int:
    """Signal jobs' tasks, or end them; as in 26.05, KILL without a step ends the job."""
    spoiled = spoil("scancel", begin("scancel"))
    if spoiled is not None:
        return spoiled
    words = [argument.partition(".") for argument in sys.argv[1:] if not argument.startswith("--")]
    found = [(word, job, step) for word, _, step in words for job in _fake_arrays.resolve(STATE / "jobs", word) or [""]]
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
    update(job, state="CANCELLED", end=int(time.time()), exit="0:15")
    end_processes(record)
    return 0


def task_pids(job: str) -> list[int]:
    """The processes of a job's step."""
    steps = STATE / "steps" / job
    return [int(pid) for pid in steps.read_text().split()] if steps.exists() else []


def end_processes(record: dict[str, Any]) -> None:
    """TERM to everything of a job."""
    for pid in [*task_pids(record["id"]), *([record["pid"]] if record.get("pid") else [])]:
        send(pid, signal.SIGTERM)


def send(pid: int, number: int) -> None:
    """A signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


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
    for rank in range(int(options["ntasks"])):
        env = {**os.environ, "SLURM_NODEID": str(rank), "SLURM_PROCID": str(rank), "CUDA_VISIBLE_DEVICES": gpus}
        tasks.append(subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL))
    with (STATE / "steps" / os.environ["SLURM_JOB_ID"]).open("a") as file:
        file.write("".join(f"{task.pid}\n" for task in tasks))
    return max(abs(task.wait()) for task in tasks)


WITH_VALUE = {"--workdir", "--env-file", "--network", "--mount", "--pwd"}


def apptainer() -> None:
    """Log the argv, then run the command on this host, the container's paths turned into the host's."""
    global STATE  # noqa: PLW0603 - learners get no SLURM_CONF; the scratch directory lies beside the state
    workdir = Path(sys.argv[sys.argv.index("--workdir") + 1])
    STATE = next(parent / "slurm" for parent in workdir.parents if (parent / "slurm" / "site.json").exists())
    begin("apptainer")
    arguments = sys.argv[1:]
    mounts, env_file = [], ""
    while arguments:
        word = arguments.pop(0)
        if word in WITH_VALUE:
            value = arguments.pop(0)
            env_file = value if word == "--env-file" else env_file
            if word == "--mount":
                fields = dict(part.partition("=")[::2] for part in next(csv_rows(value)))
                mounts.append((fields["destination"], fields["source"]))
        elif not word.startswith("-") and word != "exec":
            break
    env = shell_environment(env_file)
    for name, value in env.items():
        if name.endswith("_DIR"):
            for destination, source in sorted(mounts, key=lambda m: -len(m[0])):
                if value == destination or value.startswith(destination + "/"):
                    env[name] = source + value[len(destination) :]
                    break
    os.execvpe(arguments[0], arguments, {"PATH": os.environ["PATH"], **env})


def csv_rows(text: str) -> Iterator[list[str]]:
    """As Apptainer reads --mount."""
    import csv

    yield from csv.reader([text])


def shell_environment(path: str) -> dict[str, str]:
    """The variables that the file sets, by a shell's reading."""
    script = f"set -a; . {shlex.quote(path)}; env -0"
    text = subprocess.run(["env", "-i", "bash", "-c", script], capture_output=True, check=True).stdout
    pairs = (item.decode("utf-8", "surrogateescape").partition("=") for item in text.split(b"\0") if item)
    return {name: value for name, _, value in pairs if name not in ("PWD", "SHLVL", "_")}


def main() -> None:
    """The detached half: run a job, or accept one late."""
    if sys.argv[1] == "late":
        time.sleep(float(sys.argv[3]))
        script = Path(sys.argv[2]).read_text()
        accept(script, read_options(script))
    else:
        run_job(sys.argv[2])


if __name__ == "__main__":
    main()

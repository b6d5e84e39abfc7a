"""sbatch of the fake Slurm, and the processes that run what it accepted (the program fake-slurm-job)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fakes.slurm import arrays
from tests.fakes.slurm.state import (
    BANNER,
    BUSY,
    ENDED,
    STATE,
    TIMEOUT,
    begin,
    complain,
    fail,
    load,
    locked,
    records,
    save,
    update,
)  # fmt: skip

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from typing import Any

PROGRAM = Path(__file__).resolve().parents[1] / "bin" / "fake-slurm-job"


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


def sbatch() -> int:  # noqa: PLR0911, PLR0912 - one return for each way to fail
    """Accept a script, print its id."""
    fault = begin("sbatch")
    path = sys.argv[-1]
    script = Path(path).read_text()
    if not script.startswith("#!"):
        return complain("sbatch", "This does not look like a batch script.")
    options = read_options(script) | given_options()
    if fault.startswith("site="):
        return refuse_as_site(fault.partition("=")[2])
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
    if fault.partition("=")[0] == "busy":
        if words := fault.partition("=")[2]:
            complain("sbatch", words)
        complain("sbatch", BUSY)
        time.sleep(1)
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
    kind, _, number = fault.partition("=")
    printed = number if kind == "wrapped" else job
    around = BANNER if kind in ("banner", "wrapped") else b""
    sys.stdout.buffer.write(around + f"{printed}\n".encode() + around)
    return 0


def refuse_as_site(words: str) -> int:
    """Behave as a job_submit.lua with slurm.user_msg(words) and slurm.ERROR."""
    complain("sbatch", words)
    last = "allocation failure" if "--test-only" in sys.argv else "sbatch: error: Batch job submission failed"
    sys.stderr.write(f"{last}: Unspecified error\n")
    return 1


def given_options() -> dict[str, str]:
    """Options of the command line but for those that say how to submit."""
    pairs = (argument[2:].partition("=") for argument in sys.argv[1:-1] if argument.startswith("--"))
    return {name: value for name, _, value in pairs if name not in ("parsable", "test-only")}


def accept(script: str, options: dict[str, str]) -> str:
    """Write the job down, or the tasks of an array, and start what runs them."""
    tasks, limit = arrays.read_tasks(options.get("array", ""))
    with locked():
        counter = STATE / "next"
        job = str(int(counter.read_text()) if counter.exists() else 101)
        counter.write_text(str(int(job) + 1 + len(tasks)))
        (STATE / "jobs" / f"{job}.sh").write_text(script)
        (STATE / "jobs" / f"{job}.env").write_text(json.dumps(dict(os.environ)))
        (STATE / "jobs" / f"{job}.dir").write_text(str(Path.cwd()))
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
    """A detached process that begins in :func:`main`."""
    subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
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
    env["SLURM_SUBMIT_DIR"] = (STATE / "jobs" / f"{batch}.dir").read_text()
    env |= {"SLURM_JOB_ID": job, "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": options["nodes"],
            **end_time(options.get("time", ""))}  # fmt: skip
    if run:
        env["SLURM_RESTART_COUNT"] = str(run)
    patterns = {"%": "%", "j": job, "A": batch, "a": record.get("task", "4294967294")}
    output = re.sub("%([%jAa])", lambda m: patterns[m[1]], options["output"])

    def note() -> None:
        """Before the script's first line: what it did would show that the job runs."""
        update(job, state="RUNNING", reason="None", start=int(time.time()), nodes="n1", pid=os.getpid(), split=True)

    with Path(output).open("ab") as out:
        process = subprocess.Popen(
            [*interpreter(batch), str(STATE / "jobs" / f"{batch}.sh")],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=options["chdir"], start_new_session=True,
            preexec_fn=note,  # noqa: PLW1509 - there are no threads here
        )  # fmt: skip
    code = process.wait()
    text = f"0:{-code}" if code < 0 else f"{code}:0"
    if (load(job) or {"restarts": run})["restarts"] != run:
        spawn("run", job)  # it was requeued: as in Slurm, the next run begins when this one has ended
    else:
        update(job, state="COMPLETED" if code == 0 else "FAILED", exit=text, end=int(time.time()),
               reason="None" if code == 0 else "NonZeroExitCode")  # fmt: skip


def interpreter(batch: str) -> list[str]:
    """What the script's first line names."""
    first = (STATE / "jobs" / f"{batch}.sh").read_text().partition("\n")[0]
    return first.removeprefix("#!").split()


def take_turn(job: str) -> bool:
    """Whether a task of an array may start: as many others run as may, or it is running from now on."""
    with locked():
        record = load(job)
        if record is None or not record.get("limit") or record["state"] in ENDED:
            return True
        if arrays.is_full(record, records("jobs")):
            save({**record, "reason": "JobArrayTaskLimit"})
            return False
        save({**record, "state": "RUNNING", "reason": "None", "start": int(time.time()), "nodes": "n1", "split": True})
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


def main() -> None:
    """The detached half: run a job, or accept one late."""
    if sys.argv[1] == "late":
        time.sleep(float(sys.argv[3]))
        while (STATE / "later").exists():
            time.sleep(0.02)
        script = Path(sys.argv[2]).read_text()
        accept(script, read_options(script))
    else:
        run_job(sys.argv[2])

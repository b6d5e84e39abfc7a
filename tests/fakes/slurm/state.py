"""A small Slurm made of files and processes, behind real executables, for tests.

The state directory is where $SLURM_CONF lies (the one variable that the adapter hands to every command)::

    jobs/<id>.json   what the controller remembers      jobs/<id>.sh, <id>.env   what it was given
    gone/<id>.json   what only the accounting remembers; the file `accounting` switches accounting on
    steps/<id>       process ids of the job's tasks     calls.log   one JSON line for each command that was run
    faults.json      {"squeue": ["down", …], …}: each entry spoils one call, in order; "x:always" spoils all
    site.json        what sinfo says                    hold       while it exists, accepted jobs stay pending
    accounts/<id>.json   what the accounting says of a job in the place of the truth (null: nothing)
    others           lines that squeue prints of others' jobs
    later            while it exists, what is accepted late is not accepted yet
    show-node, show-partition, ...    what scontrol shows
    still            while it exists, accepted jobs get no process at all

Faults of all: down, timeout, no_munge, garbage, binary, big, empty, hang, slow=SECONDS, banner (around the answer). Of
squeue: half (the end is missing, and it says so), odd (the first row lacks a field); of squeue and sacct: cut (the end
is missing, in mid-line, and all is well).
Of sbatch beside them: refuse[=text], site=WORDS (of a job_submit.lua that returns slurm.ERROR), lose_reply, untrusted
(the reply), hang (after accepting), silent, twice, busy[=WORDS of the site] (accepted at the second try, a second
later), late[=SECONDS] (accepted so long after the time-out was reported), wrapped=NUMBER (accepted, and what stands
before sbatch greets and prints another number).
What is listed of others' jobs (`user` in a record) is what Slurm's --me and --user show: nothing.

What all of them share is here. sbatch and what runs jobs are in jobs.py, job arrays in arrays.py, squeue,
sacct and sinfo in queries.py, scontrol, scancel and srun in verbs.py, apptainer in apptainer.py.

sbatch takes further options before the script, which win over the script's; ``--dependency=afterany:ID`` is kept.
scancel takes ``--state`` and ``--signal``; scontrol requeues, holds, releases and updates ExcNodeList
and NodeList.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.slurm import arrays

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from typing import Any

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


@contextmanager
def locked() -> Iterator[None]:
    """One at a time."""
    with (STATE / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load(job: str) -> dict[str, Any] | None:
    """A job's record; an array's task is named by its array, too."""
    found = arrays.resolve(STATE / "jobs", job) if "_" in job else [job]
    try:
        record: dict[str, Any] = json.loads((STATE / "jobs" / f"{found[0] if found else job}.json").read_text())
    except FileNotFoundError:
        return None
    return record


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
            whole = path.with_suffix(f".{os.getpid()}")  # commands read it at any time
            whole.write_text(json.dumps(faults))
            whole.replace(path)
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


def records(folder: str) -> list[dict[str, Any]]:
    """All records of a folder, by id. The caller has the lock, so that none changes meanwhile."""
    paths = sorted((STATE / folder).glob("*.json"), key=lambda p: int(p.stem))
    return [json.loads(path.read_text()) for path in paths]


def snapshot(*folders: str) -> list[dict[str, Any]]:
    """The records of folders at one moment."""
    with locked():
        return [record for folder in folders for record in records(folder)]


def own(*folders: str) -> list[dict[str, Any]]:
    """Those of the user who asks."""
    return [record for record in snapshot(*folders) if not record.get("user")]


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

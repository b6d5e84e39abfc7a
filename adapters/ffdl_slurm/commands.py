"""Build the argv of every Slurm command. Each has its parser in :mod:`ffdl_slurm.observing.parsers`.

No shell, no I/O. Options exist in every Slurm from 20.11 to 26.05 (read in src/squeue/opts.c, src/sacct/options.c
of both). Headers are not suppressed: output without its header is not an answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

# A size of 0 prints a field in full (src/squeue/print.c `_print_str`), the text after it is the field's suffix.
# The name is last, because it may hold the separator.
QUEUE_FIELDS = (
    "JobArrayID", "State", "exit_code", "RestartCnt", "SubmitTime", "StartTime", "EndTime", "NodeList", "Reason",
)  # fmt: skip
ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList", "Reason", "JobName")
RUN_FIELDS = ("JobID", "State", "ElapsedRaw", "AllocTRES", "JobName")
USE_FIELDS = ("User", "Account", "ElapsedRaw", "AllocTRES", "JobIDRaw", "State")
SITE_FIELDS = ("%P", "%l", "%c", "%m", "%G", "%f", "%N")
SEPARATOR = "|"
# sacct takes its ids in one argument, and Linux limits an argument to 128 KiB.
IDS_PER_COMMAND = 2000
LARGEST_JOB_ID = 0xFFFFFFFC
"""Slurm counts to MAX_JOB_ID (26 bits), and a federation puts the number of the cluster into the six bits above; from
MAX_FED_JOB_ID (0xfffffffd) on numbers have other meanings (slurm/slurm.h; `unfmt_job_id_string` in
src/common/slurm_protocol_defs.c refuses them, and 0)."""
_JOB_ID = re.compile(r"([1-9]\d{0,9})(?:_.+)?", re.ASCII)


def squeue_argv(*names: str) -> list[str]:
    """List the user's jobs that slurmctld knows, in every state and partition; with `names` only those.

    --array prints a line for each task. Without it squeue adds a requeued task to the waiting ones, and its restarts
    and its reason are lost (src/squeue/print.c `_combine_pending_array_tasks`).
    """
    fields = ",".join(f"{field}:0{SEPARATOR}" for field in QUEUE_FIELDS) + ",Name:0"
    wanted = [f"--name={','.join(names)}"] if names else []
    return ["squeue", "--me", "--all", "--states=all", "--array", f"--Format={fields}", *wanted]


SHARED_FIELDS = ("UserID", *QUEUE_FIELDS)
"""No field that users write: their names and comments could contain a newline and the row of another user."""


def shared_squeue_argv() -> list[str]:
    """List the live jobs of all users. A row is that of :func:`squeue_argv` after the uid, without the name."""
    fields = f"{SEPARATOR},".join(f"{field}:0" for field in SHARED_FIELDS)
    return ["squeue", "--all", "--array", f"--Format={fields}"]


def admin_level_argv(user: str) -> list[str]:
    """Print the AdminLevel of a user in the accounting."""
    return ["sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={user}", "format=AdminLevel"]


def sacct_argv(ids: Sequence[str], uid: int) -> list[str]:
    """List these jobs in the accounting. With ids, sacct sets no start time.

    With ids it shows other users' jobs too, and a slurmctld that crashed may have assigned an id twice.
    """
    return ["sacct", *_SACCT, f"--user={uid}", f"--jobs={','.join(ids)}"]


def sacct_by_name_argv(names: str, since: str, uid: int) -> list[str]:
    """List jobs in the accounting by names, separated by commas, since a day (YYYY-MM-DD). sacct's default is today."""
    return ["sacct", *_SACCT, f"--user={uid}", f"--name={names}", f"--starttime={since}"]


def sacct_runs_argv(ids: Sequence[str]) -> list[str]:
    """List every start of these jobs in the accounting: a requeued job has a line for each. Their names show whose they
    are."""
    return [
        "sacct", "--allocations", "--duplicates", "--parsable2", f"--format={','.join(RUN_FIELDS)}",
        f"--jobs={','.join(ids)}",
    ]  # fmt: skip


def sacct_uses_argv(since: float, until: float) -> list[str]:
    """List what all users held within a period, in seconds since the epoch. With --truncate, sacct counts only the part
    of each job within the period."""
    times = [f"--{name}time={time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(at))}"
             for name, at in (("start", since), ("end", until))]  # fmt: skip
    return [
        "sacct", "--allusers", "--allocations", "--duplicates", "--truncate", "--parsable2", *times,
        f"--format={','.join(USE_FIELDS)}",
    ]  # fmt: skip


_SACCT = ("--allocations", "--parsable2", f"--format={','.join(ACCOUNT_FIELDS)}")


def id_chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in portions that fit into one command."""
    for start in range(0, len(ids), IDS_PER_COMMAND):
        yield ids[start : start + IDS_PER_COMMAND]


def is_job_id(word: str) -> bool:
    """Return whether this can be the id of a job, a task or a set of tasks."""
    match = _JOB_ID.fullmatch(word)
    return match is not None and int(match[1]) <= LARGEST_JOB_ID


def job_chunks(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids that can be jobs, in portions as :func:`id_chunks`.

    Another number makes sacct refuse all ids of the command, and scancel takes the id of a step modulo 2^32, which is
    that of another job (seen on 26.05).
    """
    return id_chunks([job for job in jobs if is_job_id(job)])


def sinfo_argv() -> list[str]:
    """List partitions and kinds of nodes: one line for each pair, with exact numbers."""
    return ["sinfo", "--all", "--exact", f"--format={SEPARATOR.join(SITE_FIELDS)}"]


def config_argv() -> list[str]:
    """Print slurmctld's configuration."""
    return ["scontrol", "show", "config"]


def version_argv() -> list[str]:
    """Print Slurm's version without asking slurmctld."""
    return ["sinfo", "--version"]


EXCLUDED_FIELDS = ("%i", "%x")


def excluded_argv(job: str) -> list[str]:
    """List the nodes that a job excludes, with one line for each element of an array."""
    return ["squeue", "--me", "--all", "--states=all", f"--jobs={job}", f"--format={SEPARATOR.join(EXCLUDED_FIELDS)}"]


def exclude_argv(job: str, nodes: str) -> list[str]:
    """Replace the nodes that a waiting job excludes (scontrol(1): ExcNodeList)."""
    return ["scontrol", "update", f"JobId={job}", f"ExcNodeList={nodes}"]


def shrink_argv(job: str, nodes: Sequence[str]) -> list[str]:
    """Release all nodes of a running job except these (scontrol(1): NodeList).

    Slurm refuses NumNodes for a job with --ntasks-per-node (26.05: "Job is no longer pending execution"). The step
    continues on the remaining nodes, even without --no-kill, if the tasks on the released nodes have ended (26.05).
    """
    return ["scontrol", "update", f"JobId={job}", f"NodeList={','.join(nodes)}"]


def sbatch_argv(script: str) -> list[str]:
    """Submit a script, which has all options."""
    return ["sbatch", "--parsable", script]


def successor_argv(warned: bool) -> list[str]:
    """Submit the next attempt from the head of this one. The placeholders are those of a Succession.

    Options of the command line win over the script's (sbatch(1)). When the script was written, the job to start after
    and the duration of checkpoints were not known. With `warned` false the script's --signal stays.
    """
    lead = ["--signal=URG@{lead_s}"] if warned else []
    return ["sbatch", "--parsable", "--dependency=afterany:{native_id}", *lead, "{script}"]


def requeue_argv() -> list[str]:
    """Requeue the running job of a head under its id. ``{native_id}`` is the job."""
    return ["scontrol", "requeue", "{native_id}"]


def limit_argv() -> list[str]:
    """Print the current time limit of the head's job, which ``scontrol update`` may have changed. ``{native_id}`` is
    the job."""
    return ["squeue", "--noheader", "--jobs={native_id}", "--format=%l"]


def test_only_argv(script: str) -> list[str]:
    """Ask whether and when a script would start, without submitting it."""
    return ["sbatch", "--test-only", script]


def signal_argv(signal: str, *jobs: str) -> list[str]:
    """Signal the tasks of the heads' steps on every node, not the batch scripts.

    The argument names step 0, because the head starts one step only. Without a step (seen on 26.05) KILL ends the whole
    job, also a waiting one, and scancel repeats other signals to a waiting job for a minute and a half.
    """
    return ["scancel", f"--signal={signal}", *(f"{job}.0" for job in jobs)]


def withdraw_argv(*jobs: str, atomically: bool) -> list[str]:
    """End jobs that still wait. With `atomically`, slurmctld checks the state and ends the job in one step. By default
    scancel checks it first."""
    return ["scancel", *(["--ctld"] if atomically else []), "--state=PENDING", *jobs]


def cancel_argv(*jobs: str) -> list[str]:
    """End jobs, pending or running. Tasks of an array can be one word, such as ``12_[0-3]``."""
    return ["scancel", *jobs]


def beside_argv(job: str, node_rank: int, argv: Sequence[str]) -> list[str]:
    """Start a step with one task on one node of a running job, beside step 0, which has all of the job's resources.

    --overlap lets steps share CPUs since 20.11, but memory and GRES only since 21.08. So the step asks for none:
    --mem=0 is all of the job's memory, and the helper needs no device. --relative is the number of the node in the
    allocation. The step does not get the owner's limits and directory, nor the site's MPI plugin.
    """
    return [
        "srun", f"--jobid={job}", "--overlap", f"--relative={node_rank}", "--nodes=1", "--ntasks=1",
        "--cpus-per-task=1", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none", "--propagate=NONE",
        "--chdir=/", "--export=ALL", "--kill-on-bad-exit=0", "--job-name=ffdl-attach", *argv,
    ]  # fmt: skip

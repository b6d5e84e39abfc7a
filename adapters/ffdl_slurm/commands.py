"""The argv of every Slurm command that is run; each has its parser in :mod:`ffdl_slurm.observing.parsers`.

No shell, no I/O. Options exist in every Slurm from 20.11 to 26.05 (read in src/squeue/opts.c, src/sacct/options.c
of both). Headers are asked for, not suppressed: an answer that has its header is an answer, and text without one
is something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# A size of 0 prints a field in full (src/squeue/print.c `_print_str`), the text after it is the field's suffix.
# The name stands last: it may hold the separator.
QUEUE_FIELDS = (
    "JobArrayID", "State", "exit_code", "RestartCnt", "SubmitTime", "StartTime", "EndTime", "NodeList", "Reason",
)  # fmt: skip
ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList", "Reason", "JobName")
RUN_FIELDS = ("JobID", "State", "ElapsedRaw", "AllocTRES", "JobName")
SITE_FIELDS = ("%P", "%l", "%c", "%m", "%G", "%f", "%N")
SEPARATOR = "|"
# sacct takes its ids in one argument; Linux takes 128 KiB an argument.
IDS_PER_COMMAND = 2000
LARGEST_JOB_ID = 0xFFFFFFFC
"""Slurm counts to MAX_JOB_ID (26 bits), and a federation puts the number of the cluster into the six bits above; from
MAX_FED_JOB_ID (0xfffffffd) on numbers have other meanings (slurm/slurm.h; `unfmt_job_id_string` in
src/common/slurm_protocol_defs.c refuses them, and 0)."""
_JOB_ID = re.compile(r"([1-9]\d{0,9})(?:_.+)?", re.ASCII)


def squeue_argv(*names: str) -> list[str]:
    """All own jobs that the controller remembers, in every state and partition; or those of some names.

    --array: each task of an array on a line of its own. Else squeue adds a task that was requeued to the waiting ones,
    and its restarts and its reason are lost (src/squeue/print.c `_combine_pending_array_tasks`).
    """
    fields = ",".join(f"{field}:0{SEPARATOR}" for field in QUEUE_FIELDS) + ",Name:0"
    wanted = [f"--name={','.join(names)}"] if names else []
    return ["squeue", "--me", "--all", "--states=all", "--array", f"--Format={fields}", *wanted]


def sacct_argv(ids: Sequence[str], uid: int) -> list[str]:
    """The accounting's word on these jobs; with ids sacct looks back to the beginning of time.

    With ids it shows other users' jobs too, and a slurmctld that crashed may have given an id a second time.
    """
    return ["sacct", *_SACCT, f"--user={uid}", f"--jobs={','.join(ids)}"]


def sacct_by_name_argv(names: str, since: str, uid: int) -> list[str]:
    """The accounting's word on jobs of some names, separated by commas, since a day (YYYY-MM-DD); without a day it
    would be midnight."""
    return ["sacct", *_SACCT, f"--user={uid}", f"--name={names}", f"--starttime={since}"]


def sacct_runs_argv(ids: Sequence[str]) -> list[str]:
    """What the accounting has of every start of these jobs: one that was requeued has a line for each. Whose they are
    is told by their names."""
    return [
        "sacct", "--allocations", "--duplicates", "--parsable2", f"--format={','.join(RUN_FIELDS)}",
        f"--jobs={','.join(ids)}",
    ]  # fmt: skip


_SACCT = ("--allocations", "--parsable2", f"--format={','.join(ACCOUNT_FIELDS)}")


def id_chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """`ids` in portions that fit into one command."""
    for start in range(0, len(ids), IDS_PER_COMMAND):
        yield ids[start : start + IDS_PER_COMMAND]


def is_job_id(word: str) -> bool:
    """Whether Slurm can have given the number of this job, task or set of tasks to a job."""
    match = _JOB_ID.fullmatch(word)
    return match is not None and int(match[1]) <= LARGEST_JOB_ID


def job_chunks(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    """As :func:`id_chunks`, of those that can be jobs.

    One that cannot makes sacct refuse all that stand beside it, and scancel takes the id of a step modulo 2^32, which
    is another job's (seen on 26.05).
    """
    return id_chunks([job for job in jobs if is_job_id(job)])


def sinfo_argv() -> list[str]:
    """Partitions and kinds of nodes, one line for each pair, exact numbers."""
    return ["sinfo", "--all", "--exact", f"--format={SEPARATOR.join(SITE_FIELDS)}"]


def config_argv() -> list[str]:
    """The controller's configuration."""
    return ["scontrol", "show", "config"]


def version_argv() -> list[str]:
    """Slurm's version; does not ask the controller."""
    return ["sinfo", "--version"]


EXCLUDED_FIELDS = ("%i", "%x")


def excluded_argv(job: str) -> list[str]:
    """Which nodes a job excludes; one line for each element of an array."""
    return ["squeue", "--me", "--all", "--states=all", f"--jobs={job}", f"--format={SEPARATOR.join(EXCLUDED_FIELDS)}"]


def exclude_argv(job: str, nodes: str) -> list[str]:
    """Replace the nodes that a waiting job excludes (scontrol(1): ExcNodeList)."""
    return ["scontrol", "update", f"JobId={job}", f"ExcNodeList={nodes}"]


def sbatch_argv(script: str) -> list[str]:
    """Submit; all options stand in the script."""
    return ["sbatch", "--parsable", script]


def successor_argv(warned: bool) -> list[str]:
    """What the head of an attempt submits the next one with; placeholders are those of a Succession.

    Options of the command line win over the script's (sbatch(1)): the script was written before it was known after
    which job it starts and how long this job's checkpoints take. `warned` is false where the script's --signal stays.
    """
    lead = ["--signal=URG@{lead_s}"] if warned else []
    return ["sbatch", "--parsable", "--dependency=afterany:{native_id}", *lead, "{script}"]


def requeue_argv() -> list[str]:
    """Have the running job of a head started anew under its id; ``{native_id}`` is the job."""
    return ["scontrol", "requeue", "{native_id}"]


def limit_argv() -> list[str]:
    """What the head of a running job asks for its time limit, which may have been changed (scontrol update);
    ``{native_id}`` is the job."""
    return ["squeue", "--noheader", "--jobs={native_id}", "--format=%l"]


def test_only_argv(script: str) -> list[str]:
    """Ask whether and when it would start; sends no job."""
    return ["sbatch", "--test-only", script]


def signal_argv(signal: str, *jobs: str) -> list[str]:
    """Signal the tasks of the heads' steps on every node, not the batch scripts.

    The step is named: it has number 0 in every run, for the head starts one only. Without it (seen on 26.05) KILL
    ends the whole job, a waiting one too, and other signals to a waiting job are tried again for a minute and a half.
    """
    return ["scancel", f"--signal={signal}", *(f"{job}.0" for job in jobs)]


def withdraw_argv(*jobs: str, atomically: bool) -> list[str]:
    """End jobs that still wait. `atomically`: slurmctld looks at the state and ends the job in one step, where
    scancel by itself looks first and asks then."""
    return ["scancel", *(["--ctld"] if atomically else []), "--state=PENDING", *jobs]


def cancel_argv(*jobs: str) -> list[str]:
    """End jobs, pending or running; tasks of an array can be one word, as ``12_[0-3]``."""
    return ["scancel", *jobs]


def beside_argv(job: str, node_rank: int, argv: Sequence[str]) -> list[str]:
    """A step with one task on one node of a running job, beside its step 0, which has all that the job has.

    --overlap lets steps share CPUs (20.11), memory and GRES since 21.08 only. So it counts none of these: --mem=0 is
    all of the job's memory, and what only talks to the learner needs no device. --relative is the number of the node in
    the allocation. The owner's limits and directory, and the site's MPI plugin, are not the step's.
    """
    return [
        "srun", f"--jobid={job}", "--overlap", f"--relative={node_rank}", "--nodes=1", "--ntasks=1",
        "--cpus-per-task=1", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none", "--propagate=NONE",
        "--chdir=/", "--export=ALL", "--kill-on-bad-exit=0", "--job-name=ffdl-attach", *argv,
    ]  # fmt: skip

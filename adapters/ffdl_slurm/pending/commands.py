"""The argv of what is asked to explain why jobs wait; parsers in :mod:`ffdl_slurm.pending.parsers`. No shell, no I/O.

Read in 20.11 and 26.05. Each is asked once for any number of jobs.
"""

from __future__ import annotations

from ffdl_slurm.commands import SEPARATOR

# The reason may hold commas, never the separator; the name stands last.
LIVE_FIELDS = (
    "JobArrayID", "State", "Partition", "PriorityLong", "UserName", "Reason", "StartTime", "EndTime", "NumNodes",
    "TimeLimit", "QOS", "Account", "Reservation", "Dependency", "SubmitTime", "tres-per-node", "Licenses",
    "tres-alloc", "tres-per-job", "tres-per-task", "tres-per-socket", "NumTasks", "Sockets",
)  # fmt: skip
FACTORS = {
    "%Y": "PRIORITY", "%S": "SITE", "%A": "AGE", "%B": "ASSOC", "%F": "FAIRSHARE", "%J": "JOBSIZE", "%P": "PARTITION",
    "%Q": "QOS", "%N": "NICE", "%T": "TRES",
}  # fmt: skip
"""sprio(1): the weighted factors, and what their columns are called."""


def live_argv() -> list[str]:
    """List the waiting and running jobs of all users that the site shows, with the waiting elements of an array on one
    line."""
    fields = ",".join(f"{field}:0{SEPARATOR}" for field in LIVE_FIELDS) + ",Name:0"
    return ["squeue", "--all", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED", f"--Format={fields}"]


def nodes_argv() -> list[str]:
    """List all nodes. --details adds the GRES in use."""
    return ["scontrol", "--all", "--details", "--oneliner", "show", "node"]


def partitions_argv() -> list[str]:
    """List all partitions with state and limits."""
    return ["scontrol", "--all", "--oneliner", "show", "partition"]


def reservations_argv() -> list[str]:
    """List the reservations that the user may see."""
    return ["scontrol", "--all", "--oneliner", "show", "reservation"]


def limits_argv() -> list[str]:
    """Limits of associations and QOS with what is in use, as slurmctld counts them."""
    return ["scontrol", "--oneliner", "show", "assoc_mgr", "flags=qos,assoc"]


def factors_argv(jobs: list[str]) -> list[str]:
    """List the parts of the priorities of waiting jobs."""
    return ["sprio", f"--jobs={','.join(jobs)}", f"--format=%i{SEPARATOR}{SEPARATOR.join(FACTORS)}"]

"""The options of a job that ``ffdl-submit`` takes: sbatch's by sbatch's names, and ours.

Their texts travel to the daemon as they are (``Submission.options``); what a text means is decided there, by the
same parsers that read the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option. `metavar` "" makes it a flag; `short` "" means that it has no letter."""

    name: str
    short: str
    metavar: str
    help: str
    of_sbatch: bool = True

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return "job_" + self.name.replace("-", "_")


def _ours(name: str, metavar: str, text: str) -> JobOption:
    return JobOption(name, "", metavar, text, of_sbatch=False)


JOB_OPTIONS: tuple[JobOption, ...] = (
    JobOption("time", "t", "TIME", "Time limit: minutes, [days-]hours:minutes:seconds, or 2h30m."),
    JobOption("partition", "p", "NAMES", "Partition, or several separated by commas."),
    JobOption("account", "A", "NAME", "Account to charge."),
    JobOption("qos", "q", "NAME", "Quality of service."),
    JobOption("constraint", "C", "LIST", "Features that the nodes must have."),
    JobOption("reservation", "", "NAMES", "Reservation to run in."),
    JobOption("nodelist", "w", "NODES", "Nodes that the job must have."),
    JobOption("exclude", "x", "NODES", "Nodes that the job must not have."),
    JobOption("gres", "", "LIST", "Generic resources of each learner, as gpu:a100:2."),
    JobOption("gpus", "G", "[TYPE:]N", "GPUs of each learner."),
    JobOption("cpus-per-task", "c", "N", "CPUs of each learner."),
    _ours("cpus", "N", "CPUs of each learner; the manifest's word for --cpus-per-task."),
    JobOption("mem", "", "SIZE", "Memory of each learner: MiB, or a number with K, M, G, T (powers of 1024)."),
    _ours("learners", "N", "Number of learners (processes of the training, one allocation)."),
    _ours(
        "network",
        "LEVEL",
        "Network isolation: auto, none, job, egress:HOST:PORT,... or host. Not Slurm's --network.",
    ),
    JobOption("array", "a", "INDEXES", "One job per index, as 0-9, 1,3,5 or 0-99%10; of a sweep, these elements."),
    JobOption("job-name", "J", "NAME", "Name of the job; the manifest's name without it."),
    JobOption("dependency", "d", "LIST", "Jobs to wait for, as afterok:training-0a1b2c3d4."),
    JobOption("begin", "b", "TIME", "Earliest start, as 16:00, now+1hour or 2027-01-20T12:34."),
    JobOption("hold", "H", "", "Submit in held state."),
    JobOption("requeue", "", "", "Let the scheduler start the job again after a node failure or preemption."),
    JobOption("no-requeue", "", "", "Never let the scheduler start the job again."),
    JobOption("signal", "", "SIG[@SECONDS]", "Signal to the learners so long before the time limit."),
    JobOption("mail-type", "", "TYPES", "Events to mail about: BEGIN, END, FAIL, REQUEUE, ALL, ..."),
    JobOption("mail-user", "", "ADDRESS", "Who gets the mail."),
    JobOption("comment", "", "TEXT", "A comment that the scheduler keeps."),
    JobOption("output", "o", "FILE", "File for the batch script's own output; %j and friends as in sbatch."),
)
BY_NAME = {option.name: option for option in JOB_OPTIONS}
FLAGS = frozenset(option.name for option in JOB_OPTIONS if not option.metavar)
COMMAND_OPTIONS = ("export", "help", "parsable", "quiet", "test-only", "verbose", "version", "wait")
"""sbatch's options that steer the command itself; declared in :mod:`ffdl_batch.cli.commands.submit`."""

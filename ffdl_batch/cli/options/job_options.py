"""The options of a job that ``ffdl-submit`` takes: those of sbatch that the table of options has a help text for, and
three of its own.

Their values are sent to the daemon unchanged (``Submission.options``). The parsers of the manifest read them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ffdl_batch.domain.sbatch.option_table import TABLE


@dataclass(frozen=True, slots=True)
class JobOption:
    """One option. It is a flag if `metavar` is "", and has no letter if `letter` is "". `repeats`: values of repeated
    options are joined by commas."""

    name: str
    letter: str
    metavar: str
    help: str
    repeats: bool = False

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return "job_" + self.name.replace("-", "_")


_OWN = (
    JobOption("cpus", "", "N", "CPUs of each learner; the manifest's word for --cpus-per-task."),
    JobOption("learners", "", "N", "Number of learners (processes of the training, one allocation)."),
    JobOption(
        "network",
        "",
        "LEVEL",
        "Network isolation: auto, none, job, egress:HOST:PORT,... or host. Not Slurm's --network.",
    ),
)
JOB_OPTIONS = (
    *(JobOption(row.name, row.letter, row.metavar, row.help, row.repeats) for row in TABLE if row.help),
    *_OWN,
)
BY_NAME = {option.name: option for option in JOB_OPTIONS}
FLAGS = frozenset(option.name for option in JOB_OPTIONS if not option.metavar)

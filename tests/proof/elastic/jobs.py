"""The eight jobs of the proof: measured models whose steps are shortened, so that a job takes less than a minute."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ffdl_batch.elastic.measured import MeasuredTimes, read_times
from ffdl_batch.host.fast_dataclass import dataclass

DATA = Path(__file__).resolve().parents[2] / "data" / "elastic" / "throughput.csv"
GPUS = 12
"""Of the cluster."""
SPEED_UP = 4.0
"""Steps are so many times shorter than measured."""
SHARE_POINTS = 8


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Batches are samples of one GPU."""

    name: str
    model: str
    learners: int
    """As submitted, with one GPU each."""
    most: int
    """The maximum number of learners."""
    smallest: int
    submitted: int
    largest: int
    arrives_s: float
    takes_s: float
    """At its submitted size."""


JOBS = (
    Job("a", "cifar10", 8, 8, 32, 128, 1024, 0, 45),
    Job("b", "yolov3", 4, 4, 4, 16, 16, 4, 60),
    Job("c", "bert", 8, 8, 4, 12, 12, 10, 45),
    Job("d", "deepspeech2", 4, 4, 10, 40, 80, 20, 50),
    Job("e", "cifar10", 8, 8, 32, 128, 1024, 35, 40),
    Job("f", "yolov3", 2, 4, 4, 16, 16, 50, 60),
    Job("g", "bert", 8, 8, 4, 12, 12, 65, 40),
    Job("h", "deepspeech2", 4, 4, 10, 40, 80, 80, 40),
)
"""As in the published arrivals, some owners ask for more GPUs than their models use well."""


def step_times(times: MeasuredTimes, job: Job) -> dict[str, list[list[float]]]:
    """Return, for each number of GPUs, batches of one GPU and the seconds of their steps."""
    ratio = (job.largest / job.smallest) ** (1 / (SHARE_POINTS - 1))
    shares = sorted({round(job.smallest * ratio**number) for number in range(SHARE_POINTS)})
    return {
        str(gpus): [
            [float(share) for share in shares],
            [times.step_s(job.model, gpus, share * gpus) / SPEED_UP for share in shares],
        ]
        for gpus in range(1, GPUS + 1)
    }


def samples_of(times: MeasuredTimes, job: Job) -> int:
    """Return how many samples the job trains with."""
    step_s = times.step_s(job.model, job.learners, job.learners * job.submitted) / SPEED_UP
    return math.ceil(job.takes_s / step_s) * job.learners * job.submitted


def model_files(times: MeasuredTimes) -> dict[str, str]:
    """Return the files of all jobs' models by name."""
    return {f"{job.name}.json": json.dumps(step_times(times, job)) for job in JOBS}


def manifest(times: MeasuredTimes, job: Job, *, elastic: bool) -> str:
    """Return a job's manifest. The same program runs with a fixed size if it is not elastic."""
    start = job.learners * job.submitted
    command = f"python3 learner.py {job.name}.json {samples_of(times, job)} {start}"
    section = f"""\
  elastic:
    min_learners: 1
    max_learners: {job.most}
    batch:
      min: {job.smallest}
      max: {job.largest * job.most}
      per_gpu_max: {job.largest}
      start: {start}
"""
    return f"""\
name: {job.name}-{"elastic" if elastic else "fixed"}
version: "1.0"
cpus: 1
gpus: 1
memory: 128MiB
learners: {job.learners}
framework: {{name: custom, version: python-numpy, command: {command}}}
batch:
  time: 4m
  placement: pack
  checkpoint: {{grace_s: 10}}
  env: {{OPENBLAS_NUM_THREADS: "1", FIXED_BATCH: "{job.submitted}"}}
{section if elastic else ""}"""


def read() -> MeasuredTimes:
    """Return the measured times."""
    return read_times(DATA)

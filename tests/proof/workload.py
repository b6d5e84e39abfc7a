"""The jobs of the proof: numbers on disk, a learner that computes from its own numbers, and a manifest for each job.

Pure but for the random numbers, which come from a seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

# GPUs per learner and learners; sums to 50 GPUs, four times what the cluster has, so that most jobs must wait.
_SHAPES = ((1, 1), (2, 1), (4, 1), (1, 2), (3, 1), (1, 1), (2, 2), (1, 1), (4, 1), (2, 1))
NUMBERS = 5000
HIGHEST = 10**6
"""Squares of these and the sum of 5,000 of them fit into 64 bits."""

LEARNER = '''\
"""Reads the job's own numbers, keeps a record of this execution, writes what they come to."""
import hashlib
import json
import os
from pathlib import Path

import numpy as np

learner, learners = int(os.environ["LEARNER_ID"]), int(os.environ["NUM_LEARNERS"])
with open(Path(os.environ["CHECKPOINT_DIR"]) / "executions.txt", "a") as counter:
    counter.write("%d\\n" % learner)
text = (Path(os.environ["DATA_DIR"]) / "numbers.txt").read_bytes()
own = np.array(text.split(), dtype=np.int64)[learner - 1 :: learners]
devices = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
value = {"squares": int((own * own).sum()), "sha256": hashlib.sha256(text).hexdigest(), "gpus": len(devices)}
(Path(os.environ["RESULT_DIR"]) / ("value-%d.json" % learner)).write_text(json.dumps(value))
print(value, flush=True)
'''


@dataclass(frozen=True, slots=True)
class Task:
    """One job: which numbers it gets, and what it asks for."""

    name: str
    gpus: int
    learners: int
    numbers: str


def make_tasks(count: int, seed: int, prefix: str) -> list[Task]:
    """`count` tasks with numbers of their own."""
    source = random.Random(seed)
    tasks = []
    for index in range(count):
        gpus, learners = _SHAPES[index % len(_SHAPES)]
        numbers = "\n".join(str(source.randint(-HIGHEST, HIGHEST)) for _ in range(NUMBERS)) + "\n"
        tasks.append(Task(f"{prefix}-{index:03d}", gpus, learners, numbers))
    return tasks


def manifest(task: Task, store: str) -> str:
    """The manifest; `store` is a directory on the nodes that holds a directory of inputs for each task."""
    return f"""\
name: {task.name}
version: "1.0"
cpus: 1
gpus: {task.gpus}
memory: 256MiB
learners: {task.learners}
data_stores:
  - id: store
    type: mount_volume
    training_data: {{container: {task.name}}}
    training_results: {{container: results}}
    connection: {{type: host_mount, path: {store}}}
framework:
  name: custom
  version: python-numpy
  command: python3 compute.py
batch:
  time: 10m
"""

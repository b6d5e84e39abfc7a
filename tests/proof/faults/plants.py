"""What is planted: manifests and trainings, by the kind of incident that each must be."""

from __future__ import annotations

from dataclasses import dataclass

_JOB = """\
name: {name}
version: "1.0"
cpus: 1
gpus: {gpus}
memory: {memory}
learners: {learners}
framework: {{name: custom, version: {image}, command: '{command}'}}
{more}batch:
  time: {time}
  placement: pack
  retry: {{timeouts: 0, preemptions: 0, node_failures: 0, failures: 0}}
{batch}"""
METRICS = """\
evaluation_metrics:
  type: regex_extractor
  line_lookahead: 0
  groups:
    train:
      regex: 'step %{INT:step} loss %{FLOAT:loss}'
      meta: {}
      scalars: {loss: {type: FLOAT, value: $loss}}
      etimes: {iteration: {type: INT, value: $step}}
"""
IMAGE = "python-numpy"
PROGRAM = '''\
"""A training that ends as it is told."""

import os
import sys
import time


class OutOfMemoryError(RuntimeError):
    """As a framework has one."""


OutOfMemoryError.__module__ = "torch"


def load_batch(number: int) -> float:
    return [0.5, 0.25][number]


def healthy() -> None:
    for step in range(1, 21):
        print(f"step {step} loss {1 / step:.3f}", flush=True)
        time.sleep(0.05)


def traceback() -> None:
    healthy()
    load_batch(2)


def cuda() -> None:
    healthy()
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 31.74 GiB")


def memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)) * 16)
        print(len(kept), flush=True)


def full() -> None:
    with open("/tmp/weights", "wb") as file:
        for _ in range(64):  # no more: where the disk is larger than it must be, nobody else's is to be filled
            file.write(bytes(1 << 20))
            file.flush()


def hang() -> None:
    healthy()
    time.sleep(3600)


def lag() -> None:
    pause = 0.6 if os.environ["LEARNER_ID"] == "2" else 0.2
    for step in range(1, int(45 / pause)):
        print(f"step {step} loss {1 / step:.3f}", flush=True)
        time.sleep(pause)


def wait() -> None:
    healthy()
    print("waits", flush=True)
    while not os.path.exists(os.path.join(os.environ["MODEL_DIR"], "go")):
        time.sleep(0.2)
    sys.exit(7)


globals()[sys.argv[1]]()
'''


@dataclass(frozen=True, slots=True)
class Plant:
    """Jobs of one kind. `command` is the learner's; `more` and `batch` are further lines of the manifest."""

    kind: str
    command: str
    more: str = ""
    batch: str = ""
    gpus: int = 0
    learners: int = 1
    memory: str = "100MiB"
    time: str = "2h"
    image: str = IMAGE

    def manifest(self, name: str) -> str:
        """Of one of its jobs."""
        return _JOB.format(
            name=name,
            gpus=self.gpus,
            memory=self.memory,
            learners=self.learners,
            image=self.image,
            command=self.command,
            more=self.more,
            time=self.time,
            batch=self.batch,
        )


def python(what: str) -> str:
    """The command of a training that ends so."""
    return f"python3 train.py {what}"


HEALTHY = Plant("", python("healthy"))
AT_ONCE = {
    "exit": Plant("user.exit", "echo begins; exit 3"),
    "signal": Plant("user.signal", "echo begins; kill -SEGV $$"),
    "traceback": Plant("user.traceback", python("traceback")),
    "cuda": Plant("user.cuda_oom", python("cuda")),
    "memory": Plant("user.memory", python("memory")),
}
"""They end of themselves."""
DISK, DISK_MIB = "/mnt/ffdl-small", 8
"""A small disk on each node, for the scratch directories of these jobs."""
FULL_DISK = Plant("data.disk_full", python("full"))
LAGGING = Plant("user.straggler", python("lag"), more=METRICS, learners=3)
HANGING = Plant("user.hang", python("hang"), batch="  health: {hang_s: 20}\n")
LIMITED = Plant("scheduler.time_limit", python("hang"), time="1")
SPOT = Plant("scheduler.preempted", python("wait"), gpus=1, batch="  partition: spot\n  requeue: false\n")
LOST = Plant("node.failed", python("wait"), batch="  requeue: false\n")
SICK = {
    "gpu": Plant("node.gpu", python("wait")),
    "disk": Plant("node.disk", python("wait")),
}
LINES = {
    "gpu": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "disk": "EXT4-fs error (device sdb1): ext4_find_entry:1455: inode #2: comm python3: reading directory lblock 0",
}
"""What the kernels of nodes write."""


def without_image(image: str) -> Plant:
    """A job whose image is gone when it is let go."""
    return Plant("container.image_missing", python("healthy"), image=image, batch="  hold: true\n")


def without_bucket(endpoint: str, bucket: str) -> Plant:
    """A job whose bucket is gone when it is let go."""
    more = (
        "data_stores:\n  - id: store\n    type: s3_datastore\n"
        f"    training_data: {{container: {bucket}}}\n"
        f'    connection: {{auth_url: "{endpoint}", user_name: key, password: "a password"}}\n'
    )
    return Plant("data.missing", python("healthy"), more=more, batch="  hold: true\n")

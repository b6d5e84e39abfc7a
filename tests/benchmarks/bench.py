"""What every benchmark works with: the desk, the knobs, and programs on the login node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.knobs import Knobs
from tests.cluster.rig import Cluster
from tests.proof.desk import SOURCE, VENV_PYTHON, Desk

PLAIN_NAME = "ffdl-bench-plain"
"""Job name of what the plain tools submit, so that it can be cancelled without touching anything else."""

_MANIFEST = """\
name: {name}
cpus: 1
gpus: 1
memory: 256MiB
learners: 1
framework:
  name: custom
  version: python-numpy
  command: sleep 2
batch:
  time: 10m
"""
_PLAIN_SCRIPT = """\
#!/bin/sh
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=256M --time=10 --output=/dev/null
sleep 2
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """The place of a benchmark."""

    cluster: Cluster
    desk: Desk
    knobs: Knobs

    def prepare(self) -> None:
        """The files that several benchmarks use, and a daemon that is warm."""
        base = self.desk.base
        files = {f"{base}/plain.sh": _PLAIN_SCRIPT, f"{base}/model/README": "nothing is needed here\n"}
        for index in range(max(self.knobs.batch, self.knobs.live_jobs, self.knobs.drain)):
            files[f"{base}/m/{index:04d}.yml"] = _MANIFEST.format(name=f"bench-{index:04d}")
        self.desk.write(files)
        self.desk.run("ffdl-submit", "--hold", "m/0000.yml", "model")

    def loop(self, count: int) -> float:
        """Seconds that a shell loop of `count` plain submissions takes; what it submitted is cancelled."""
        script = f'i=0; while [ $i -lt {count} ]; do "$@" >/dev/null || exit 1; i=$((i+1)); done'
        (seconds,) = self.time(1, loop=["sh", "-c", script, "sh", *self.sbatch()])["loop"]
        self.cancel_plain()
        return seconds

    def node(self, program: str, *arguments: str, timeout_s: float = 600.0) -> Any:
        """What a program of `nodeside` printed."""
        path = f"{SOURCE}/tests/benchmarks/nodeside/{program}.py"
        return json.loads(self.desk.run(VENV_PYTHON, path, *arguments, timeout_s=timeout_s).stdout)

    def time(self, repeat: int, **commands: list[str]) -> dict[str, list[float]]:
        """Wall times of whole processes that take turns."""
        return dict(self.node("time_commands", str(repeat), json.dumps(commands)))

    def manifests(self, count: int) -> list[str]:
        """Names of `count` manifests, from the desk."""
        return [f"m/{index:04d}.yml" for index in range(count)]

    def sbatch(self, *options: str) -> list[str]:
        """What the plain user types."""
        return ["sbatch", "--parsable", "--hold", f"--job-name={PLAIN_NAME}", *options, "plain.sh"]

    def cancel_plain(self) -> None:
        """Cancel what the plain tools submitted."""
        self.desk.run("scancel", "--me", f"--name={PLAIN_NAME}", check=False)

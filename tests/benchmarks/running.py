"""Benchmarks of jobs that run: how soon their phases are seen, and what a training costs through us."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.bench import PLAIN_NAME, Bench
from tests.benchmarks.figures import Figure

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "digits"
_PARTS = {
    "training": "training loop",
    "learner": "container and training",
    "around": "start and end of the container",
    "total": "total",
}
IMAGE = "/shared/images/custom.sif"
ONE_THREAD = "env OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"
"""Before a command of numpy: threads of a library that share a processor with other jobs wait for each other."""
_BARE = """\
set -e
out=$(mktemp -d "$PWD/bare-XXXXXX")
export DATA_DIR=$PWD/digits/data/digits RESULT_DIR=$out CHECKPOINT_DIR=$out JOB_STATE_DIR=$out
began=$(date +%s.%N)
srun --quiet --job-name="$1" --gres=gpu:1 --cpus-per-task=1 --mem="$3" --time=10 sh -c '
  date +%s.%N >"$RESULT_DIR/learner"
  apptainer exec --containall --bind "$PWD" --pwd "$PWD/$1" \\
    --env DATA_DIR="$DATA_DIR",RESULT_DIR="$RESULT_DIR" \\
    --env CHECKPOINT_DIR="$CHECKPOINT_DIR",JOB_STATE_DIR="$JOB_STATE_DIR" \\
    "$0" $2 >/dev/null
  date +%s.%N >>"$RESULT_DIR/learner"' "$2" "$4" "$5"
echo "$began $(date +%s.%N) $(tr '\\n' ' ' <"$out/learner")"
cat "$out/result.json"
"""


@dataclass(frozen=True, slots=True)
class Training:
    """A training that runs by plain srun and through us. Paths are relative to the desk."""

    name: str
    image: str
    manifest: str
    model: str
    memory_mib: int
    command: str
    """Words without quotes."""

    def submission(self) -> list[str]:
        """Return the command that submits it and waits for its end."""
        return ["ffdl-submit", "--parsable", "--wait", self.manifest, self.model]


DIGITS = Training(
    "digits", IMAGE, "digits/manifest.yml", "digits/model", 512, "python3 train.py --epochs 100 --hidden 256"
)


def measure_phases(bench: Bench) -> list[Figure]:
    """From the submission until a job is seen running and completed: by our client, and by a tight squeue loop."""
    sights = [bench.node("see_phases", "m/0000.yml", "model") for _ in range(bench.knobs.sights)]
    figures = []
    for phase in ("running", "completed"):
        for who in ("ffdl", "squeue"):
            samples = [float(sight[who][phase]) for sight in sights]
            figures.append(Figure("phases", f"submit to {phase} seen", who, "s", samples))
        behind = [float(sight["ffdl"][phase]) - float(sight["squeue"][phase]) for sight in sights]
        figures.append(Figure("phases", f"{phase} seen after squeue", "ffdl", "s", behind, "<= 3"))
    return figures


def measure_training(bench: Bench) -> list[Figure]:
    """The digits example by bare ``srun apptainer exec`` and through us, taking turns."""
    copy_example(bench)
    bare, ours = [], []
    for _ in range(bench.knobs.trainings):
        bare.append(train_bare(bench, DIGITS))
        ours.append(train_through_us(bench, DIGITS))
    for run in (*bare, *ours):
        run["around"] = run["learner"] - run["training"]
    over = [100 * (o["learner"] / b["learner"] - 1) for b, o in zip(bare, ours, strict=True)]
    figures = []
    for part, what in _PARTS.items():
        figures.append(Figure("training", what, "ffdl", "s", [run[part] for run in ours]))
        figures.append(Figure("training", what, "srun", "s", [run[part] for run in bare]))
    figures.append(Figure("training", "learner over bare", "ffdl", "%", over, "<= 2"))
    return figures


def manifest_of(training: Training, example: str) -> str:
    """Return the example's manifest with another command, image and memory."""
    image = Path(training.image).stem
    framework = (
        "  name: custom\n  version: python-numpy" if image == "custom" else f"  name: {image}\n  version: debian"
    )
    changes = {
        r"^  name: custom\n  version: python-numpy.*$": framework,
        r"^  command: .*$": f"  command: {training.command}",
        r"^memory: .*$": f"memory: {training.memory_mib}MiB",
    }
    text = example
    for old, new in changes.items():
        text, found = re.subn(old, new, text, flags=re.MULTILINE)
        assert found == 1, old
    return text


def copy_example(bench: Bench) -> None:
    """The example with its data, below the desk."""
    if not (EXAMPLE / "data" / "digits").is_dir():
        subprocess.run([sys.executable, str(EXAMPLE / "fetch_data.py")], check=True)
    # Results of an earlier quickstart beside the data are readable only by its user, here root.
    source, copy = "/opt/ffdl/src/docs/examples/digits", f"{bench.desk.base}/digits"
    bench.desk.run("mkdir", "-p", f"{copy}/data")
    bench.desk.run("cp", "-r", f"{source}/manifest.yml", f"{source}/model", copy)
    bench.desk.run("cp", "-r", f"{source}/data/digits", f"{copy}/data")


def bare_argv(training: Training) -> list[str]:
    """Return the command that runs a training by plain srun, and prints its times and results."""
    memory = f"{training.memory_mib}M"
    return ["sh", "-c", _BARE, "sh", PLAIN_NAME, training.image, memory, training.model, training.command]


def train_bare(bench: Bench, training: Training) -> dict[str, float]:
    """Return the seconds of the whole, of the learner and, if the training reports it, of its loop."""
    out = bench.desk.run(*bare_argv(training), timeout_s=300).stdout
    times, _, result = out.partition("\n")
    began, ended, learner_began, learner_ended = (float(word) for word in times.split())
    return {"learner": learner_ended - learner_began, "total": ended - began, **_loop(result)}


def train_through_us(bench: Bench, training: Training) -> dict[str, float]:
    """Return the same of a job."""
    (total,) = bench.time(1, ours=training.submission())["ours"]
    job = bench.desk.jobs()[0]
    attempt = bench.desk.host_path(f"{job['job_dir']}/attempt-{job['attempt']}")
    moments: dict[str, float] = {}
    for path in attempt.glob("events/node-*.jsonl"):
        events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        moments |= {event["kind"]: float(event["at"]) for event in events if event["kind"].startswith("learner_")}
    result = (bench.desk.host_path(job["results"]) / "result.json").read_text(encoding="utf-8")
    return {"learner": moments["learner_ended"] - moments["learner_started"], "total": total, **_loop(result)}


def _loop(result: str) -> dict[str, float]:
    found = json.loads(result)
    return {"training": float(found["seconds"])} if "seconds" in found else {}

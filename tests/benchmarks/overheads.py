"""What a training costs through us beside bare ``srun apptainer exec``, for several frameworks and models."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import Figure
from tests.benchmarks.running import (
    EXAMPLE,
    IMAGE,
    ONE_THREAD,
    Training,
    copy_example,
    manifest_of,
    train_bare,
    train_through_us,
)
from tests.cluster.images import IMAGES, provide_image

NAME = "overheads"
PROGRAM = Path(__file__).resolve().parent / "trainings" / "torch_digits.py"
_TORCH = f"{IMAGES}/pytorch.sif"
TRAININGS = (
    Training(
        "numpy, two layers",
        IMAGE,
        "digits/numpy.yml",
        "digits/model",
        512,
        f"{ONE_THREAD} python3 train.py --epochs 1000",
    ),
    Training("PyTorch, CNN", _TORCH, "digits/cnn.yml", "digits/torch", 1024, "python3 torch_digits.py cnn 60"),
    Training(
        "PyTorch, transformer",
        _TORCH,
        "digits/rows.yml",
        "digits/torch",
        1024,
        "python3 torch_digits.py transformer 10",
    ),
)


def measure_overheads(bench: Bench) -> list[Figure]:
    """Return times of each training, the two ways in turns, and how much longer it takes through us."""
    copy_example(bench)
    provide_image(bench.cluster, "pytorch")
    base, example = bench.desk.base, (EXAMPLE / "manifest.yml").read_text(encoding="utf-8")
    files = {f"{base}/digits/torch/{PROGRAM.name}": PROGRAM.read_text(encoding="utf-8")}
    bench.desk.write({**files, **{f"{base}/{one.manifest}": manifest_of(one, example) for one in TRAININGS}})
    figures = []
    for training in TRAININGS:
        pairs = [(train_bare(bench, training), train_through_us(bench, training)) for _ in range(bench.knobs.trainings)]
        for part, what in (("learner", "container and training"), ("total", "total")):
            over = [100 * (ours[part] / bare[part] - 1) for bare, ours in pairs]
            aim = "<= 2" if part == "learner" else ""
            measure = f"{training.name}: {what}"
            figures += [
                Figure(NAME, measure, "ffdl", "s", [ours[part] for _, ours in pairs]),
                Figure(NAME, measure, "srun", "s", [bare[part] for bare, _ in pairs]),
                Figure(NAME, f"{measure}, over bare", "ffdl", "%", over, aim),
            ]
    return figures

"""The learner of the proof of elastic jobs: small but real training steps, stretched to measured step times.

    python3 learner.py TIMES_JSON SAMPLES START

The first learner trains a linear model on samples that follow from their numbers, so that every division of the samples
into steps can be compared. It then sleeps until the step has taken the time that TIMES_JSON has for its GPUs and batch
of one GPU. The other learners wait for it. START is the batch of all GPUs that the learning rate is right for. The log
is the evidence: it shows where a session begins, and each checkpoint. Needs Python 3.9 and numpy alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

if os.environ.get("RANK", "0") == "0":  # its import takes longer than the start of a learner that only waits
    import numpy as np

WIDTH = 16
PROGRESS = 6.0
"""The learning rate times the number of steps."""
SAVE_EVERY_S = 3.0
REPORT_EVERY_S = 2.0
requests: list[int] = []


def note(number: int, _frame: FrameType | None) -> None:
    """Remember that a checkpoint is requested."""
    requests.append(number)


def samples(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of samples, which depend on their numbers alone."""
    angles = np.arange(first, first + count)[:, None] * np.sqrt(np.arange(2, WIDTH + 2))
    inputs = np.sin(angles)
    return inputs, inputs @ np.linspace(-1, 1, WIDTH)


def loss(weights: np.ndarray) -> float:
    """Return the mean squared error on samples that no training sees."""
    inputs, targets = samples(10**7, 1000)
    return float(((inputs @ weights - targets) ** 2).mean())


def load(checkpoint: Path) -> tuple[np.ndarray, int]:
    """Return the weights, and the number of samples that they have seen."""
    if not checkpoint.is_file():
        return np.zeros(WIDTH), 0
    with np.load(checkpoint) as arrays:
        return arrays["weights"], int(arrays["seen"])


def save(checkpoint: Path, weights: np.ndarray, seen: int) -> None:
    """Replace the checkpoint."""
    print("saving", seen, flush=True)
    partial = checkpoint.with_name("partial.npz")
    with partial.open("wb") as file:
        np.savez(file, weights=weights, seen=seen)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(checkpoint)
    print("saved", seen, flush=True)


def train(times: dict[str, list[list[float]]], total: int, start: int, place: Path) -> bool:
    """Train until all samples were seen or a checkpoint is requested. Return whether all were."""
    gpus, each = int(os.environ["WORLD_SIZE"]), int(os.environ.get("BATCH_SIZE") or os.environ["FIXED_BATCH"])
    batch, scale = gpus * each, float(os.environ.get("LEARNING_RATE_SCALE", "1"))
    rate = scale * PROGRESS * start / total
    batches, seconds = times[str(gpus)]
    step_s = float(np.interp(each, batches, seconds))
    weights, seen = load(place / "weights.npz")
    print("session", json.dumps({"after": seen, "gpus": gpus, "batch": batch, "scale": scale}), flush=True)
    saved = reported = begun = time.monotonic()
    reported_seen = seen
    while seen < total:
        count = min(batch, total - seen)
        inputs, targets = samples(seen, count)
        weights = weights - rate * inputs.T @ (inputs @ weights - targets) / count
        begun += step_s
        time.sleep(max(0.0, begun - time.monotonic()))
        seen += count
        now = time.monotonic()
        if now - reported >= REPORT_EVERY_S:
            done, left = seen - reported_seen, max(1, total - seen)
            print(f"ffdl-throughput: samples={done} seconds={now - reported:.3f} remaining={left}", flush=True)
            reported, reported_seen = now, seen
        if requests or now - saved >= SAVE_EVERY_S:
            save(place / "weights.npz", weights, seen)
            saved = now
        if requests:
            return False
    save(place / "weights.npz", weights, seen)
    print("loss", loss(weights), flush=True)
    return True


def main(times_file: str, total: int, start: int) -> None:
    """Train as the first learner, or wait for it."""
    signal.signal(signal.SIGUSR2, note)
    place = Path(os.environ["CHECKPOINT_DIR"])
    done = place / "done"
    if os.environ["RANK"] == "0":
        if train(json.loads(Path(times_file).read_text(encoding="utf-8")), total, start, place):
            done.touch()
        return
    while not requests and not done.exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

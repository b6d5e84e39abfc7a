"""The learner of the proof of resumption: trains the digits network for a fixed number of steps, in a container.

    python3 training.py STEPS PAUSE_S [HOLD]

With HOLD each session waits after so many steps, until it is interrupted or $CHECKPOINT_DIR/go is there.
The network and its arithmetic are those of ``docs/examples/digits/model/train.py``, which lies beside this file there.
Every line of its log is evidence: where a session begins, each step, each checkpoint. Needs Python 3.9 and numpy alone.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import numpy as np

HIDDEN = 64
SAVE_EVERY = 100  # steps; what a lost node may cost

train = importlib.import_module("train")
requests: list[int] = []
Network = dict[str, np.ndarray]


def note(number: int, _frame: FrameType | None) -> None:
    """Leave word of a request."""
    requests.append(number)


def main(steps: int, pause_s: float, hold: int = 0) -> None:
    """Train up to `steps`, from the checkpoint where there is one."""
    signal.signal(signal.SIGUSR2, note)
    images, digits = train.load(Path(os.environ["DATA_DIR"]) / "digits.csv.gz")
    checkpoint = Path(os.environ["CHECKPOINT_DIR"]) / "network.npz"
    network, done = load(checkpoint)
    who = {name: os.environ.get(name, "") for name in ("FFDL_ATTEMPT", "FFDL_RESTART", "RESUME")}
    print("session", json.dumps({"after": done, **who}), flush=True)
    for step in range(done + 1, steps + 1):
        rows = batch(step, len(digits))
        train.train_step(network, images[rows], digits[rows])
        time.sleep(pause_s)
        print("step", step, flush=True)
        while step - done >= hold > 0 and not requests and not checkpoint.with_name("go").exists():
            time.sleep(0.05)
        asked = bool(requests)
        if asked or step % SAVE_EVERY == 0:
            train.save_arrays(checkpoint, {**network, "step": np.array(step)})
            print("saved", step, flush=True)
        if asked:
            sys.exit(0)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    results = Path(os.environ["RESULT_DIR"])
    train.save_arrays(results / "weights.npz", network)
    (results / "accuracy.json").write_text(json.dumps(train.measure(network, images, digits)))
    print("done", flush=True)


def load(checkpoint: Path) -> tuple[Network, int]:
    """The network, its velocities included, and the steps behind it."""
    if not checkpoint.is_file():
        return dict(train.new_network(HIDDEN)), 0
    with np.load(checkpoint) as arrays:
        return {name: arrays[name] for name in arrays.files if name != "step"}, int(arrays["step"])


def batch(step: int, count: int) -> np.ndarray:
    """The images of one step (from 1); they depend on its number alone."""
    per_epoch = count // train.BATCH
    epoch, position = divmod(step - 1, per_epoch)
    order = np.random.RandomState(train.SEED + epoch).permutation(count)
    return np.asarray(order[position * train.BATCH : (position + 1) * train.BATCH])


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))

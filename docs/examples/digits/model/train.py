"""Handwritten digits with a two-layer network in plain numpy: real data, real training, a few seconds on one core.

Needs only Python 3.9 and numpy. Reads ``$DATA_DIR/digits.csv.gz`` (64 grey values and the digit per line), writes
``result.json`` and ``weights.npz`` to ``$RESULT_DIR``, and a checkpoint to ``$CHECKPOINT_DIR`` after each epoch, from
which a job that is started again goes on. Asked to stop (SIGUSR2), it ends after the epoch's checkpoint.
"""

import argparse
import gzip
import json
import os
import signal
import sys
import time
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("train.py: numpy is missing in this Python; use an image that has it (python-numpy), or install it")

BATCH = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9
HELD_OUT = 360  # of 1,797
SEED = 20240517

requests = []


def main() -> None:
    """Train, test on the part that was held out, and write what came out."""
    options = read_options()
    signal.signal(signal.SIGUSR2, lambda number, _frame: requests.append(number))
    images, digits = load(directory("DATA_DIR") / "digits.csv.gz")
    order = np.random.RandomState(SEED).permutation(len(digits))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    print(f"training on {len(train)} images, testing on {len(test)}, GPUs given: {visible_gpus()}", flush=True)

    checkpoint = directory("CHECKPOINT_DIR") / f"digits-{os.environ.get('TRAINING_ID', 'local')}.npz"
    network, first = resume(checkpoint) or (new_network(options.hidden), 0)
    started = time.monotonic()
    loss = accuracy = 0.0
    for epoch in range(first, options.epochs):
        loss = train_epoch(network, images[train], digits[train], epoch)
        accuracy = measure(network, images[test], digits[test])
        print(f"epoch {epoch + 1}/{options.epochs} loss {loss:.4f} accuracy {accuracy:.4f}", flush=True)
        save_arrays(checkpoint, {**network, "epoch": np.array(epoch + 1)})
        if requests:
            print(f"asked to stop: saved after epoch {epoch + 1}", flush=True)
            sys.exit(0)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # done: a request that comes now needs no checkpoint
    accuracy = measure(network, images[test], digits[test])

    results = directory("RESULT_DIR")
    weights = {name: array for name, array in network.items() if not name.startswith("v_")}
    save_arrays(results / "weights.npz", weights)
    result = {
        "accuracy": round(accuracy, 4),
        "loss": round(loss, 6),
        "epochs": options.epochs,
        "trained_on": len(train),
        "tested_on": len(test),
        "seconds": round(time.monotonic() - started, 2),
        "numpy": np.__version__,
    }
    (results / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"accuracy {accuracy:.4f} on {len(test)} images that were not trained on", flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=256, help="units of the hidden layer")
    return parser.parse_args()


def directory(variable: str) -> Path:
    """A directory of the platform's contract."""
    value = os.environ.get(variable)
    if not value:
        sys.exit(f"train.py: ${variable} is not set; submit this with ffdl-submit, or set it to a directory")
    path = Path(value)
    if variable != "DATA_DIR":
        path.mkdir(parents=True, exist_ok=True)
    return path


def load(path: Path) -> tuple:
    """Grey values scaled to 0..1 (n x 64) and digits (n)."""
    if not path.is_file():
        sys.exit(f"train.py: {path} is not there; run `python3 fetch_data.py` beside the manifest first")
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1] / 16.0, table[:, -1].astype(int)


def visible_gpus() -> str:
    """What the scheduler granted; this example computes on the CPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") or "none"


def new_network(hidden: int) -> dict:
    """Weights, biases and their velocities, the same on every machine."""
    random = np.random.RandomState(SEED + 1)
    network = {
        "w1": random.normal(0, np.sqrt(2 / 64), (64, hidden)),
        "b1": np.zeros(hidden),
        "w2": random.normal(0, np.sqrt(2 / hidden), (hidden, 10)),
        "b2": np.zeros(10),
    }
    network.update({f"v_{name}": np.zeros_like(array) for name, array in network.items()})
    return network


def forward(network: dict, images: np.ndarray) -> tuple:
    """Hidden activations and the probability of each digit."""
    hidden = np.maximum(0, images @ network["w1"] + network["b1"])
    scores = hidden @ network["w2"] + network["b2"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def train_epoch(network: dict, images: np.ndarray, digits: np.ndarray, epoch: int) -> float:
    """One pass of gradient descent with momentum; the mean loss. The order depends on the epoch alone."""
    order = np.random.RandomState(SEED + 100 + epoch).permutation(len(digits))
    total = 0.0
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        total += train_step(network, images[rows], digits[rows])
    return total / len(order)


def train_step(network: dict, x: np.ndarray, y: np.ndarray) -> float:
    """One batch; the sum of its losses."""
    hidden, probability = forward(network, x)
    loss = -np.log(probability[np.arange(len(y)), y] + 1e-12).sum()
    slope = probability
    slope[np.arange(len(y)), y] -= 1
    slope /= len(y)
    back = (slope @ network["w2"].T) * (hidden > 0)
    gradients = {"w1": x.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ slope, "b2": slope.sum(axis=0)}
    for name, gradient in gradients.items():
        network[f"v_{name}"] = MOMENTUM * network[f"v_{name}"] - LEARNING_RATE * gradient
        network[name] = network[name] + network[f"v_{name}"]
    return float(loss)


def measure(network: dict, images: np.ndarray, digits: np.ndarray) -> float:
    """The share of images whose digit is recognised."""
    return float((forward(network, images)[1].argmax(axis=1) == digits).mean())


def resume(checkpoint: Path):
    """The network and the number of epochs behind it, or None where there is no checkpoint."""
    if not checkpoint.is_file():
        return None
    with np.load(checkpoint) as arrays:
        network = {name: arrays[name] for name in arrays.files if name != "epoch"}
        epoch = int(arrays["epoch"])
    print(f"going on after epoch {epoch} from {checkpoint}", flush=True)
    return network, epoch


def save_arrays(path: Path, arrays: dict) -> None:
    """Write the file whole or not at all, so that a kill in between leaves the last one."""
    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
    unfinished.replace(path)


if __name__ == "__main__":
    main()

"""A plain Python loop that can be stopped anywhere and goes on as if nothing had happened. Standard library only.

It fits a line to points with noise by stochastic gradient descent, and writes what it found to ``$RESULT_DIR``.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

SAVE_EVERY = 50  # steps; what a failed node can cost
LEARNING_RATE = 0.01

checkpoint = Path(os.environ["CHECKPOINT_DIR"]) / "loop.json"
halt_file = Path(os.environ["JOB_STATE_DIR"]) / "halt"
requests = []


def on_request(number, _frame):
    """Only notes the request; the loop acts on it between two steps, where the state is whole."""
    requests.append(number)


def save(state):
    """Write the file whole or not at all: a kill in between leaves the last one."""
    unfinished = checkpoint.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(checkpoint)


def load():
    """The state to go on from: everything that decides the next step, the random numbers included."""
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
        print(f"going on after step {state['step']} (RESUME={os.environ.get('RESUME', '')})", flush=True)
        return state
    return {"step": 0, "slope": 0.0, "offset": 0.0, "random": random.Random(20240517).getstate()}


def main():
    """Train for a fixed number of steps."""
    parser = argparse.ArgumentParser(description="Fit a line.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that a step takes")
    options = parser.parse_args()

    signal.signal(signal.SIGUSR2, on_request)
    state = load()
    source = random.Random()
    version, numbers, gauss = state["random"]  # JSON has made lists of its tuples
    source.setstate((version, tuple(numbers), gauss))
    while state["step"] < options.steps:
        train_step(state, source)
        time.sleep(options.pause)
        state["step"] += 1
        state["random"] = source.getstate()
        print(f"step {state['step']}", flush=True)
        stop = bool(requests) or halt_file.exists()
        if stop or state["step"] % SAVE_EVERY == 0:
            save(state)
        if stop:
            print(f"asked to stop: saved at step {state['step']}", flush=True)
            sys.exit(0)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # done: a request that comes now needs no checkpoint

    result = {name: state[name] for name in ("step", "slope", "offset")}
    (Path(os.environ["RESULT_DIR"]) / "result.json").write_text(json.dumps(result) + "\n")
    print(f"y = {state['slope']:.3f} x + {state['offset']:.3f}", flush=True)


def train_step(state, source):
    """One point of y = 3 x - 1 with noise."""
    x = source.uniform(-1, 1)
    error = state["slope"] * x + state["offset"] - (3 * x - 1 + source.gauss(0, 0.1))
    state["slope"] -= LEARNING_RATE * 2 * error * x
    state["offset"] -= LEARNING_RATE * 2 * error


if __name__ == "__main__":
    main()

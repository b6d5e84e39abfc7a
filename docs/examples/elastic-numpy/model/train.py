"""Data-parallel training in plain numpy that can continue with any number of learners and any batch.

The order of the samples depends only on their position in the training, and the position is counted in samples, not in
steps. Every size therefore trains on the same samples in the same order. Learner 1 adds up the gradients of all
learners.
"""

import argparse
import json
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np

LEARNING_RATE = 0.02  # for the batch `start` in the manifest
MOMENTUM = 0.9
WARM_UP = 2000  # samples over which the learning rate adapts to a new batch
EXAMPLES = 1000
SAVE_EVERY_S = 60  # maximum training time lost by a node failure
REPORT_EVERY_S = 10
SEED = 20240517

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, SCALE = int(os.environ["GLOBAL_BATCH_SIZE"]), float(os.environ["LEARNING_RATE_SCALE"])
checkpoint = Path(os.environ["CHECKPOINT_DIR"]) / "training.npz"
halt_file = Path(os.environ["JOB_STATE_DIR"]) / "halt"
requests = []


def main():
    """Train on a fixed number of samples."""
    parser = argparse.ArgumentParser(description="Learn a function of eight numbers.")
    parser.add_argument("--samples", type=int, default=40000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes in addition")
    options = parser.parse_args()
    signal.signal(signal.SIGUSR2, lambda number, _frame: requests.append(number))
    peers = connect()
    inputs, targets = examples()
    state = load()
    seen, began_at, old_scale = int(state["seen"]), int(state["seen"]), float(state["scale"])
    saved_at = reported_at = time.monotonic()
    reported, stop = seen, False

    while seen < options.samples and not stop:
        step = range(seen, min(seen + BATCH, options.samples))
        mine = rows(step[RANK::WORLD])
        loss, gradient = gradients(state["weights"], inputs[mine], targets[mine])
        asked = float(bool(requests) or halt_file.exists())
        total = add_up(peers, np.concatenate([gradient, [loss, asked]])) / len(step)
        scale = old_scale + (SCALE - old_scale) * min(1.0, (seen - began_at) / WARM_UP)
        state["velocity"] = MOMENTUM * state["velocity"] + total[:-2]
        state["weights"] = state["weights"] - LEARNING_RATE * scale * state["velocity"]
        time.sleep(options.pause)
        seen, stop, now = step.stop, total[-1] > 0, time.monotonic()  # all learners stop after the same step
        state |= {"seen": seen, "scale": scale}
        if RANK > 0:
            continue
        print(f"samples {step.start}-{seen} loss {total[-2]:.6f}", flush=True)
        done = stop or seen == options.samples
        if done or now - reported_at >= REPORT_EVERY_S:
            report(seen - reported, now - reported_at, options.samples - seen)
            reported, reported_at = seen, now
        if stop or now - saved_at >= SAVE_EVERY_S:
            save(state)
            saved_at = now
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # everything is saved, so ignore further requests
    if stop:
        print(f"asked to stop: learner {RANK + 1} has seen {seen} samples", flush=True)
    elif RANK == 0:
        loss = gradients(state["weights"], inputs, targets)[0] / EXAMPLES
        result = {"samples": seen, "loss": loss, "learning_rate": LEARNING_RATE * float(state["scale"])}
        Path(os.environ["RESULT_DIR"], "result.json").write_text(json.dumps(result) + "\n")


def report(samples, seconds, remaining):
    """Print the throughput of all learners together. ffdl reads this line."""
    print(f"ffdl-throughput: samples={samples} seconds={seconds:.3f} remaining={remaining}", flush=True)


def load():
    """Return the state to continue from. Every learner reads it, so that all have the same weights."""
    if checkpoint.exists():
        with np.load(checkpoint) as arrays:
            state = {name: arrays[name] for name in arrays.files}
        print(f"continuing after {state['seen']} samples on {WORLD} learners with batch {BATCH}", flush=True)
        return state
    weights = np.random.RandomState(SEED).normal(0, 0.3, 8 * 16 + 16 + 16)
    return {"weights": weights, "velocity": np.zeros_like(weights), "seen": 0, "scale": 1.0}


def save(state):
    """Write the checkpoint atomically: a kill leaves the previous one intact."""
    unfinished = checkpoint.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, **state)
    unfinished.replace(checkpoint)


def examples():
    """Return the data, which are the same on every machine."""
    source = np.random.RandomState(SEED + 1)
    inputs = source.normal(size=(EXAMPLES, 8))
    return inputs, np.tanh(inputs.sum(axis=1) / 2) + 0.1 * source.normal(size=EXAMPLES)


def rows(positions):
    """Return the examples at these positions of the training. Each epoch has its own order."""
    epochs = {position // EXAMPLES for position in positions}
    orders = {epoch: np.random.RandomState(SEED + 2 + epoch).permutation(EXAMPLES) for epoch in epochs}
    return [orders[position // EXAMPLES][position % EXAMPLES] for position in positions]


def gradients(weights, x, y):
    """Return the sum of the losses of these examples, and of their gradients. Both are 0 without examples."""
    inner, bias, outer = weights[:128].reshape(8, 16), weights[128:144], weights[144:]
    hidden = np.tanh(x @ inner + bias)
    error = hidden @ outer - y
    back = 2 * error[:, None] * outer * (1 - hidden**2)
    return float((error**2).sum()), np.concatenate([(x.T @ back).ravel(), back.sum(axis=0), 2 * error @ hidden])


def connect():
    """Return the connections: learner 1 connects to all others, and they connect to learner 1."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if RANK == 0:
        with socket.create_server(address, backlog=WORLD) as server:
            return [server.accept()[0].makefile("rwb") for _ in range(WORLD - 1)]
    end = time.monotonic() + 60
    while True:
        try:
            return [socket.create_connection(address).makefile("rwb")]
        except ConnectionRefusedError:  # learner 1 does not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def add_up(peers, values):
    """Return the sum of the values of all learners. If a learner has exited, the others fail too."""
    if RANK > 0:
        send(peers[0], values)
        return receive(peers[0], values)
    total = values + sum(receive(peer, values) for peer in peers)
    for peer in peers:
        send(peer, total)
    return total


def send(peer, values):
    """Send an array immediately."""
    peer.write(values.tobytes())
    peer.flush()


def receive(peer, like):
    """Receive an array of the same shape."""
    received = peer.read(like.nbytes)
    if len(received) < like.nbytes:
        raise ConnectionError("another learner has ended")
    return np.frombuffer(received)


if __name__ == "__main__":
    main()

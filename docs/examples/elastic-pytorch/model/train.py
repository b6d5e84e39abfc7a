"""PyTorch training with DistributedDataParallel that can continue with any number of GPUs and any batch.

Runs as ``python3 train.py`` with one GPU per learner, or under ``torchrun`` with one process per GPU. The order of the
samples depends only on their position in the training, and the position is counted in samples, not in steps.

If ``torchrun`` may restart its processes, some learners can leave while the others continue. The remaining processes
keep their batches.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LEARNING_RATE = 0.02  # for the batch `start` in the manifest
WARM_UP = 2000  # samples over which the learning rate adapts to a new batch
EXAMPLES = 1000
SAVE_EVERY_S = 60  # maximum training time lost by a node failure
REPORT_EVERY_S = 10
SEED = 20240517

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # under torchrun these count processes
FIRST = (os.environ["LEARNER_ID"], os.environ["LOCAL_RANK"]) == ("1", "0")  # its rank under torchrun can be any
BEGAN_WITH = int(os.environ["GLOBAL_BATCH_SIZE"])  # batch of all processes at the start of the attempt
BATCH = WORLD * int(os.environ["BATCH_SIZE"])  # batch of the remaining processes
SCALE = float(os.environ["LEARNING_RATE_SCALE"]) * BATCH / BEGAN_WITH  # learning_rate: linear, as in the manifest
MAY_LEAVE = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
checkpoint = Path(os.environ["CHECKPOINT_DIR"]) / "training.pt"
halt_file = Path(os.environ["JOB_STATE_DIR"]) / "halt"
requests = []


def main():
    """Train on a fixed number of samples."""
    options = read_options()
    signal.signal(signal.SIGUSR2, lambda number, _frame: requests.append(number))
    device = join_others()

    torch.manual_seed(SEED)  # the same initial weights in every process
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9)
    seen, old_scale = load(network, optimizer, device)
    model = DistributedDataParallel(network) if WORLD > 1 else network
    inputs, targets = (tensor.to(device) for tensor in examples())
    began_at, reported, stop = seen, seen, False
    saved_at = reported_at = time.monotonic()

    while seen < options.samples and not stop:
        step = range(seen, min(seen + BATCH, options.samples))
        mine = rows(step[RANK::WORLD])
        scale = old_scale + (SCALE - old_scale) * min(1.0, (seen - began_at) / WARM_UP)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * scale
        try:
            optimizer.zero_grad()
            squares = nn.functional.mse_loss(model(inputs[mine]), targets[mine], reduction="sum")
            loss = squares * WORLD / len(step)  # DDP divides by WORLD
            loss.backward()
            optimizer.step()
            seen = step.stop
            time.sleep(options.pause)
            mean, asked = add_up([loss.item() / WORLD, float(bool(requests) or halt_file.exists())], device)
        except RuntimeError:  # other processes have left; torchrun restarts this one
            if FIRST and MAY_LEAVE:
                save(network, optimizer, seen, scale)
            raise
        stop, now = asked > 0, time.monotonic()  # all processes stop after the same step
        if not FIRST:
            continue
        print(f"samples {step.start}-{seen} loss {mean:.6f}", flush=True)
        if stop or seen == options.samples or now - reported_at >= REPORT_EVERY_S:
            report(seen - reported, now - reported_at, options.samples - seen)
            reported, reported_at = seen, now
        if stop or now - saved_at >= SAVE_EVERY_S:
            save(network, optimizer, seen, scale)
            saved_at = now
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # everything is saved, so ignore further requests
    if stop:
        print(f"asked to stop: process {RANK} has seen {seen} samples", flush=True)
    elif FIRST:
        with torch.no_grad():
            loss = nn.functional.mse_loss(network(inputs), targets).item()
        store({"samples": seen, "loss": loss, "learning_rate": optimizer.param_groups[0]["lr"]})
    if WORLD > 1:
        dist.destroy_process_group()


def read_options():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Learn a function of eight numbers.")
    parser.add_argument("--samples", type=int, default=40000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step")
    return parser.parse_args()


def join_others():
    """Join the process group at MASTER_ADDR and MASTER_PORT. Return the device of this process."""
    if BATCH != BEGAN_WITH and not MAY_LEAVE:
        raise SystemExit(f"{WORLD} processes do not fit BATCH_SIZE: start one per GPU with torchrun")
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
        torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group(backend)
    return device


def report(samples, seconds, remaining):
    """Print the throughput of all learners together. ffdl reads this line."""
    print(f"ffdl-throughput: samples={samples} seconds={seconds:.3f} remaining={remaining}", flush=True)


def store(result):
    """Write the result of the training."""
    Path(os.environ["RESULT_DIR"], "result.json").write_text(json.dumps(result) + "\n")


def load(network, optimizer, device):
    """Load the checkpoint in every process. Return the position in the data and the learning rate scale."""
    if not checkpoint.exists():
        return 0, 1.0
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])  # with the old learning rate, which each step replaces
    print(f"continuing after {state['seen']} samples in {WORLD} processes with batch {BATCH}", flush=True)
    return state["seen"], state["scale"]


def save(network, optimizer, seen, scale):
    """Write the checkpoint atomically: a kill leaves the previous one intact."""
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen, "scale": scale}
    unfinished = checkpoint.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(checkpoint)


def examples():
    """Return the data, which are the same on every machine."""
    source = torch.Generator().manual_seed(SEED)
    inputs, noise = torch.randn(EXAMPLES, 8, generator=source), torch.randn(EXAMPLES, 1, generator=source)
    return inputs, torch.tanh(inputs.sum(dim=1, keepdim=True) / 2) + 0.1 * noise


def rows(positions):
    """Return the examples at these positions of the training. Each epoch has its own order."""
    epochs = {position // EXAMPLES for position in positions}
    orders = {e: torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(SEED + e)) for e in epochs}
    return [int(orders[position // EXAMPLES][position % EXAMPLES]) for position in positions]


def add_up(values, device):
    """Return the sums over all processes."""
    total = torch.tensor(values, device=device)
    if WORLD > 1:
        dist.all_reduce(total)
    return total.tolist()


if __name__ == "__main__":
    main()

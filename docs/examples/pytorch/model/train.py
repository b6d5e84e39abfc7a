"""PyTorch, stopped anywhere and resumed bit for bit: model, optimizer, random numbers and place in the data are saved.

Runs as one process (``python3 train.py``) and as several (``torchrun --nproc_per_node 2 train.py``). It learns a
function of eight numbers on the CPU, so that it needs no data; a GPU changes the device and nothing else.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAVE_EVERY = 50  # steps; what a failed node can cost
BATCH = 16
EXAMPLES = 512
SEED = 20240517

checkpoint = Path(os.environ["CHECKPOINT_DIR"]) / "training.pt"
halt_file = Path(os.environ["JOB_STATE_DIR"]) / "halt"
requests = []


def main():
    """Train for a fixed number of steps."""
    options = read_options()
    signal.signal(signal.SIGUSR2, lambda number, _frame: requests.append(number))
    distributed = "TORCHELASTIC_RUN_ID" in os.environ  # torchrun started this process
    if distributed:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)  # the same first weights everywhere
    network = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    model = DistributedDataParallel(network) if distributed else network
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    torch.manual_seed(SEED + 1 + rank)  # from here on each process draws its own
    step = resume(network, optimizer, rank)
    inputs, targets = examples()

    while step < options.steps:
        rows = batch(step, rank, world)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        time.sleep(options.pause)
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        stop = agree_to_stop(distributed)
        if stop or step % SAVE_EVERY == 0:
            save(network, optimizer, step, rank, world)
        if stop:
            leave(f"asked to stop: saved at step {step}", rank, distributed)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # done: a request that comes now needs no checkpoint

    if rank == 0:
        write_result(network, step)
    leave(f"trained for {step} steps", rank, distributed)


def read_options():
    """The command line."""
    parser = argparse.ArgumentParser(description="Learn a function of eight numbers.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that a step takes")
    return parser.parse_args()


def examples():
    """The data: the same on every machine."""
    source = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, 8, generator=source)
    return inputs, torch.sin(inputs.sum(dim=1, keepdim=True))


def batch(step, rank, world):
    """This process's rows of one step. They depend on the step alone, so the step is the place in the data."""
    per_epoch = EXAMPLES // (BATCH * world)
    epoch, position = divmod(step, per_epoch)
    order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
    first = (position * world + rank) * BATCH
    return order[first : first + BATCH]


def agree_to_stop(distributed):
    """Whether any process was asked: all must stop after the same step, or the others wait for it for ever."""
    stop = torch.tensor(int(bool(requests) or halt_file.exists()))
    if distributed:
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    return bool(stop)


def save(network, optimizer, step, rank, world):
    """Rank 0 writes for all, whole or not at all; the random numbers are each process's own."""
    random = [torch.get_rng_state()] * world
    if world > 1:
        dist.all_gather_object(random, torch.get_rng_state())
    if rank == 0:
        state = {
            "step": step,
            "model": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": random,  # on GPUs torch.cuda.get_rng_state() too
        }
        unfinished = checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(checkpoint)


def resume(network, optimizer, rank):
    """The number of steps behind the checkpoint, 0 where there is none."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    network.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"][rank])
    if rank == 0:
        print(f"going on after step {state['step']} (RESUME={os.environ.get('RESUME', '')})", flush=True)
    return state["step"]


def write_result(network, step):
    """The weights, and a digest of their bits."""
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    results = Path(os.environ["RESULT_DIR"])
    torch.save(network.state_dict(), results / "weights.pt")
    (results / "result.json").write_text(json.dumps({"step": step, "weights": digest.hexdigest()}) + "\n")


def leave(words, rank, distributed):
    """End, once rank 0 has written what it had to."""
    if distributed:
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        print(words, flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()

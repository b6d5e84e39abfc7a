"""PyTorch on any number of learners: the same steps, the same losses, on one learner and on forty.

Each step takes 64 examples, and every process an equal part of them; the gradients are averaged over all processes.
It runs as ``python3 train.py`` in each learner, under ``torchrun``, and under ``mpirun``: all that it needs to find the
others is in its environment.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64  # examples of a step, over all processes
EXAMPLES = 512
SEED = 20240517


def main():
    """Train for a fixed number of steps."""
    parser = argparse.ArgumentParser(description="Learn a function of eight numbers.")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    rank, world = join_others()

    torch.set_num_threads(1)
    torch.manual_seed(SEED)  # the same first weights everywhere
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(network) if world > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    inputs, targets = examples()
    losses = []
    for step in range(options.steps):
        rows = batch(step)[rank::world]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        losses.append(mean_over_all(loss.detach(), world))
        if rank == 0:
            print(f"step {step + 1} loss {losses[-1]:.6f} on {world}", flush=True)

    if rank == 0:
        result = {"processes": world, "losses": losses}
        Path(os.environ["RESULT_DIR"], "result.json").write_text(json.dumps(result) + "\n")
    if world > 1:
        dist.destroy_process_group()


def join_others():
    """This process's number and how many there are. ``mpirun`` numbers its processes itself."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ["RANK"]))
    world = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)  # at MASTER_ADDR, MASTER_PORT
    return rank, world


def examples():
    """The data: the same on every machine."""
    source = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(EXAMPLES, 8, generator=source)
    return inputs, torch.tanh(inputs.sum(dim=1, keepdim=True) / 2)


def batch(step):
    """The rows of one step, over all processes."""
    epoch, position = divmod(step, EXAMPLES // BATCH)
    order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
    return order[position * BATCH : (position + 1) * BATCH]


def mean_over_all(loss, world):
    """The loss of the whole batch."""
    if world > 1:
        dist.all_reduce(loss)
        loss /= world
    return loss.item()


if __name__ == "__main__":
    main()

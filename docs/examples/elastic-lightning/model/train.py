"""Lightning training that can continue with any number of learners and any batch (see `Elastic` and `Stream`).

Lightning counts its position in the data in batches of an epoch. This position is wrong after a change of the batch.
The data are therefore one endless stream, and the callback counts samples.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

LEARNING_RATE = 0.02  # for the batch `start` in the manifest
EXAMPLES = 1000
SAVE_EVERY_S = 60  # maximum training time lost by a node failure
REPORT_EVERY_S = 10
SEED = 20240517

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, SCALE = int(os.environ["GLOBAL_BATCH_SIZE"]), float(os.environ["LEARNING_RATE_SCALE"])
checkpoint = Path(os.environ["CHECKPOINT_DIR"]) / "training.ckpt"
halt_file = Path(os.environ["JOB_STATE_DIR"]) / "halt"


class Elastic(Callback):
    """Count samples, report the throughput, save on request, and set the learning rate for this size."""

    def __init__(self, samples):
        """Train on `samples` samples, rounded up to whole batches."""
        self.samples, self.seen, self.reported, self.requests = samples, 0, 0, []

    def state_dict(self):
        """Return the state that Lightning stores in checkpoints."""
        return {"seen": self.seen}

    def load_state_dict(self, state):
        """Lightning calls it before it asks for the data."""
        self.seen = self.reported = state["seen"]
        print(f"continuing after {self.seen} samples on {WORLD} learners with batch {BATCH}", flush=True)

    def on_train_start(self, trainer, module):
        """Replace the learning rate of the old size, which was restored with the optimizer."""
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = LEARNING_RATE * SCALE
        signal.signal(signal.SIGUSR2, lambda number, _frame: self.requests.append(number))
        self.saved_at = self.reported_at = time.monotonic()
        trainer.should_stop = self.seen >= self.samples

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        """Stop all learners after the same step. All of them must call `save_checkpoint`."""
        late = RANK == 0 and time.monotonic() - self.saved_at >= SAVE_EVERY_S
        flags = torch.tensor([bool(self.requests) or halt_file.exists(), late], dtype=torch.int, device=module.device)
        asked, save = (flag > 0 for flag in trainer.strategy.reduce(flags, reduce_op="sum").tolist())
        self.seen += BATCH
        done = asked or self.seen >= self.samples
        if RANK == 0:
            print(f"samples {self.seen - BATCH}-{self.seen} loss {outputs['loss'].item():.6f}", flush=True)
        if RANK == 0 and (done or time.monotonic() - self.reported_at >= REPORT_EVERY_S):
            samples, seconds = self.seen - self.reported, time.monotonic() - self.reported_at
            left = max(0, self.samples - self.seen)
            print(f"ffdl-throughput: samples={samples} seconds={seconds:.3f} remaining={left}", flush=True)
            self.reported, self.reported_at = self.seen, time.monotonic()
        if asked or save:
            unfinished = checkpoint.with_suffix(".unfinished")
            trainer.save_checkpoint(unfinished)
            if RANK == 0:
                unfinished.replace(checkpoint)
            self.saved_at = time.monotonic()
        trainer.should_stop = done

    def on_train_end(self, trainer, module):
        """Ignore further requests: everything is saved."""
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


class OneDevice(TorchElasticEnvironment):
    """RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Each learner sees only its own device."""

    def local_rank(self):
        """Learners without GPUs are numbered on their node, but Lightning counts devices."""
        return 0


class Stream(IterableDataset):
    """This learner's samples from the callback's position on. Each epoch has its own order."""

    def __init__(self, elastic):
        """The position is read when Lightning begins to iterate."""
        self.elastic = elastic
        source = torch.Generator().manual_seed(SEED)
        self.inputs, noise = torch.randn(EXAMPLES, 8, generator=source), torch.randn(EXAMPLES, 1, generator=source)
        self.targets = torch.tanh(self.inputs.sum(dim=1, keepdim=True) / 2) + 0.1 * noise

    def __iter__(self):
        """Endless: the callback ends the training."""
        position, epoch = self.elastic.seen + RANK, -1
        while True:
            if position // EXAMPLES != epoch:
                epoch = position // EXAMPLES
                order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
            row = order[position % EXAMPLES]
            yield self.inputs[row], self.targets[row]
            position += WORLD


class Network(LightningModule):
    """An ordinary module, which does not depend on the size."""

    def __init__(self):
        """Create the same initial weights in every learner."""
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, _):
        """Return the mean loss of this learner's part of the batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        """The callback sets the learning rate."""
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=0.9)


def main():
    """Train on a number of samples."""
    parser = argparse.ArgumentParser(description="Learn a function of eight numbers.")
    parser.add_argument("--samples", type=int, default=100000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    elastic, network = Elastic(options.samples), Network()
    stream = Stream(elastic)
    trainer = Trainer(
        strategy="ddp" if WORLD > 1 else "auto",
        plugins=[OneDevice()],
        devices=1,
        num_nodes=WORLD,
        max_epochs=1,  # of the endless stream
        callbacks=[elastic],
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    loader = DataLoader(stream, batch_size=int(os.environ["BATCH_SIZE"]))  # with workers, divide the stream among them
    trainer.fit(network, loader, ckpt_path=checkpoint if checkpoint.exists() else None)
    if elastic.seen < options.samples:
        print(f"asked to stop: learner {RANK + 1} has seen {elastic.seen} samples", flush=True)
    elif RANK == 0:
        with torch.no_grad():
            loss = nn.functional.mse_loss(network.layers(stream.inputs), stream.targets).item()
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        result = {"samples": elastic.seen, "loss": loss, "learning_rate": rate}
        Path(os.environ["RESULT_DIR"], "result.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

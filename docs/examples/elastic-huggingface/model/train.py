"""Hugging Face Trainer that can continue with any number of learners and any batch.

The Trainer counts its position in the data in steps. This position is wrong after a change of the batch. The data are
therefore one endless stream, and the callback `Elastic` counts samples.
"""

import argparse
import json
import math
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

LEARNING_RATE = 0.005  # for the batch `start` in the manifest
EXAMPLES = 1000
SAVE_EVERY_S = 60  # maximum training time lost by a node failure
REPORT_EVERY_S = 10
SEED = 20240517

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH, SCALE = int(os.environ["GLOBAL_BATCH_SIZE"]), float(os.environ["LEARNING_RATE_SCALE"])
checkpoints = Path(os.environ["CHECKPOINT_DIR"])
halt_file = Path(os.environ["JOB_STATE_DIR"]) / "halt"


class Elastic(TrainerCallback, ExportableState):
    """Count samples, report the throughput, save on request, and set the learning rate for this size."""

    def __init__(self, samples, checkpoint):
        """Train on `samples` samples. The checkpoint, if there is one, has the position."""
        self.samples, self.seen, self.requests = samples, 0, []
        if checkpoint:
            state = TrainerState.load_from_json(checkpoint / "trainer_state.json")
            self.seen = state.stateful_callbacks["Elastic"]["attributes"]["seen"]
            print(f"continuing after {self.seen} samples on {WORLD} learners with batch {BATCH}", flush=True)
        self.reported = self.seen

    def state(self):
        """Return the state that the Trainer stores in trainer_state.json."""
        return {"args": {}, "attributes": {"seen": self.seen}}

    def on_train_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **_):
        """Replace the learning rate of the old size, which was restored with optimizer and scheduler."""
        lr_scheduler.base_lrs = [args.learning_rate for _ in lr_scheduler.base_lrs]
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate
        signal.signal(signal.SIGUSR2, lambda number, _frame: self.requests.append(number))
        self.saved_at = self.reported_at = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        """Stop and save in all learners after the same step."""
        now = time.monotonic()
        late = RANK == 0 and now - self.saved_at >= SAVE_EVERY_S
        flags = torch.tensor([bool(self.requests) or halt_file.exists(), late], dtype=torch.int, device=args.device)
        if WORLD > 1:
            dist.all_reduce(flags)
        asked, save = (flag > 0 for flag in flags.tolist())
        self.seen += BATCH
        control.should_save = asked or save
        control.should_training_stop = control.should_training_stop or asked
        if control.should_save:
            self.saved_at = now
        if RANK > 0:
            return
        print(f"samples {self.seen - BATCH}-{self.seen}", flush=True)
        if control.should_training_stop or now - self.reported_at >= REPORT_EVERY_S:
            samples, seconds, left = self.seen - self.reported, now - self.reported_at, max(0, self.samples - self.seen)
            print(f"ffdl-throughput: samples={samples} seconds={seconds:.3f} remaining={left}", flush=True)
            self.reported, self.reported_at = self.seen, now

    def on_train_end(self, args, state, control, **_):
        """Ignore further requests: everything is saved."""
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)


class Stream(IterableDataset):
    """This learner's samples from some position on. Each epoch has its own order."""

    def __init__(self, position):
        """`position` is that of all learners, in samples."""
        self.position = position
        source = torch.Generator().manual_seed(SEED)
        self.inputs, noise = torch.randn(EXAMPLES, 8, generator=source), torch.randn(EXAMPLES, 1, generator=source)
        self.targets = torch.tanh(self.inputs.sum(dim=1, keepdim=True) / 2) + 0.1 * noise

    def __iter__(self):
        """Endless: the Trainer ends after `max_steps`."""
        position, epoch = self.position + RANK, -1
        while True:
            if position // EXAMPLES != epoch:
                epoch = position // EXAMPLES
                order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
            row = order[position % EXAMPLES]
            yield {"inputs": self.inputs[row], "labels": self.targets[row]}
            position += WORLD


class ElasticTrainer(Trainer):
    """A Trainer whose loader does not divide the stream, because `Stream` already divides it among the learners."""

    def get_train_dataloader(self):
        """With workers, divide the stream among them, too."""
        return DataLoader(self.train_dataset, batch_size=self.args.per_device_train_batch_size)


class Network(nn.Module):
    """A small model. Any model whose output has a loss can be used."""

    def __init__(self):
        """Create the same initial weights in every learner."""
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs, labels):
        """Return the mean loss of this learner's part of the batch."""
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def newest_checkpoint():
    """Return the newest complete checkpoint. The Trainer writes trainer_state.json after the other files."""
    whole = [path.parent for path in checkpoints.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.partition("-")[2]), default=None)


def main():
    """Train on a number of samples, rounded up to whole batches."""
    parser = argparse.ArgumentParser(description="Learn a function of eight numbers.")
    parser.add_argument("--samples", type=int, default=100000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = newest_checkpoint()
    elastic = Elastic(options.samples, checkpoint)
    steps_before = int(checkpoint.name.partition("-")[2]) if checkpoint else 0
    steps = max(0, math.ceil((options.samples - elastic.seen) / BATCH))
    arguments = TrainingArguments(
        output_dir=checkpoints,
        per_device_train_batch_size=int(os.environ["BATCH_SIZE"]),
        max_steps=steps_before + max(1, steps),
        learning_rate=LEARNING_RATE * SCALE,
        lr_scheduler_type="constant",
        ignore_data_skip=True,  # the stream begins at the right place
        save_strategy="no",  # the callback asks for it
        save_total_limit=2,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
    )
    network, stream = Network(), Stream(elastic.seen)
    trainer = ElasticTrainer(network, arguments, train_dataset=stream, callbacks=[elastic])
    if steps:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if elastic.seen < options.samples:
        print(f"asked to stop: learner {RANK + 1} has seen {elastic.seen} samples", flush=True)
    elif RANK == 0 and steps:
        with torch.no_grad():
            loss = nn.functional.mse_loss(network.layers.cpu()(stream.inputs), stream.targets).item()
        rate = trainer.optimizer.param_groups[0]["lr"]
        result = {"samples": elastic.seen, "loss": loss, "learning_rate": rate}
        Path(os.environ["RESULT_DIR"], "result.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

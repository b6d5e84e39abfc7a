"""Train a small network in Lightning, one job per learning rate, and print the losses.

Run it on a login node:  python3 submit.py --image my-lightning.sif --gpus 1 0.1 0.01
The image needs Lightning and this version of Python. This program needs neither PyTorch nor Lightning.
"""

import argparse

from ffdl_batch import Client


def train(rate, steps):
    """Run in the learner. Continue from the last checkpoint, and return the loss."""
    import os
    from pathlib import Path

    import torch
    from lightning import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
    from torch.utils.data import DataLoader, TensorDataset

    class Line(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            inputs, targets = batch
            loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=rate)

    seed_everything(7, workers=True)
    inputs = torch.linspace(-1, 1, 256).unsqueeze(1)
    results, saved = Path(os.environ["RESULT_DIR"]), Path(os.environ["CHECKPOINT_DIR"])
    trainer = Trainer(
        max_steps=steps,
        devices=1,
        enable_progress_bar=False,
        logger=CSVLogger(results, name="", version=""),
        callbacks=[ModelCheckpoint(saved, save_last=True, every_n_train_steps=20)],
    )
    last = saved / "last.ckpt"
    batches = DataLoader(TensorDataset(inputs, 3 * inputs + 1), batch_size=32)
    trainer.fit(Line(), batches, ckpt_path=last if last.exists() else None)
    trainer.save_checkpoint(results / "model.ckpt")
    return trainer.callback_metrics["loss"].item()


def main():
    """Submit all jobs, then wait for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rates", nargs="+", type=float)
    parser.add_argument("--image", default="lightning")
    parser.add_argument("--gpus", type=float, default=0)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    with Client() as client:
        jobs = {
            rate: client.submit_function(
                train, rate, given.steps, image=given.image, gpus=given.gpus, mem="2G", time="10m"
            )
            for rate in given.rates
        }
        for rate, job in jobs.items():
            print(f"{job.id} rate {rate} loss {job.result():.6f}", flush=True)
            job.download(f"results/{rate}", only=["model.ckpt", "metrics.csv"])


if __name__ == "__main__":
    main()

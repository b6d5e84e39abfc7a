"""Handwritten digits in PyTorch on the CPU, for the benchmark `overheads`: torch_digits.py MODEL EPOCHS.

MODEL is `cnn` (the image), or `transformer` (its eight rows as tokens). Reads ``$DATA_DIR/digits.csv.gz``, and writes
the seconds of the training loop and the share of right answers to ``$RESULT_DIR/result.json``.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCH, HELD_OUT, SEED = 32, 360, 20240517


def main(model: str, epochs: int) -> None:
    """Train, and test on images that were held out."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    with gzip.open(Path(os.environ["DATA_DIR"]) / "digits.csv.gz", "rt") as file:
        table = torch.tensor(np.loadtxt(file, delimiter=","), dtype=torch.float32)
    images, digits = table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    network = {"cnn": cnn, "transformer": transformer}[model]()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    began = time.monotonic()
    for epoch in range(epochs):
        for rows in torch.randperm(len(digits) - HELD_OUT).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images[rows]), digits[rows])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}/{epochs} loss {loss.item():.4f}", flush=True)
    seconds = time.monotonic() - began
    network.eval()
    with torch.no_grad():
        right = (network(images[-HELD_OUT:]).argmax(dim=1) == digits[-HELD_OUT:]).float().mean().item()
    result = {"seconds": seconds, "accuracy": right, "torch": torch.__version__}
    (Path(os.environ["RESULT_DIR"]) / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


def cnn() -> nn.Module:
    """Return two convolutions and a linear layer."""
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def transformer() -> nn.Module:
    """Return a transformer that reads the eight rows of an image."""
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    return nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 64), encoder, nn.Flatten(), nn.Linear(512, 10))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""A line through noisy points, with the settings that the sweep gives to this element. Standard library only."""

import json
import os
import random
from pathlib import Path


def main():
    """Train, and write the error that is left to ``$RESULT_DIR``."""
    rate, steps = float(os.environ["LEARNING_RATE"]), int(os.environ["STEPS"])
    index = os.environ["FFDL_ARRAY_INDEX"]
    source = random.Random(20240517)  # the same points for every element
    slope = offset = 0.0
    for _ in range(steps):
        x, y = draw_point(source)
        error = slope * x + offset - y
        slope -= rate * 2 * error * x
        offset -= rate * 2 * error
    test = random.Random(1)
    points = [draw_point(test) for _ in range(1000)]
    loss = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
    result = {"learning_rate": rate, "steps": steps, "loss": loss}
    (Path(os.environ["RESULT_DIR"]) / "result.json").write_text(json.dumps(result) + "\n")
    print(f"element {index}: rate {rate:g}, {steps} steps, loss {loss:.4f}", flush=True)


def draw_point(source):
    """One point of y = 3 x - 1 with noise."""
    x = source.uniform(-1, 1)
    return x, 3 * x - 1 + source.gauss(0, 0.1)


if __name__ == "__main__":
    main()

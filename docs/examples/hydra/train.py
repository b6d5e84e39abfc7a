"""A Hydra application. Run each combination as a job:

python3 train.py --multirun hydra/launcher=ffdl rate=0.1,0.2 steps=10,20
"""

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path=None, config_name="train")
def train(config: DictConfig) -> float:
    """Minimise a parabola, and return how far the minimum is."""
    place = 1.0
    for _ in range(config.steps):
        place -= config.rate * 2 * place
    print(f"rate {config.rate} steps {config.steps} place {place}")
    if config.steps < 0:
        raise ValueError("steps must be 0 or more")
    return abs(place)


if __name__ == "__main__":
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="train", node={"rate": 0.1, "steps": 10})
    train()

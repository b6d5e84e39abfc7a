"""Reads the site's values. render.py fills them in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from . import values


class Settings(NamedTuple):
    """The site's values. values.env explains them."""

    place: Path  # the directory of the incidents
    slurm_conf: Path
    kernel_log: str
    slurmd_logs: tuple[str, ...]
    gpus: bool
    clock_s: int
    mounts: str
    disks: tuple[str, ...]
    full_percent: int
    interval_s: int
    drain: bool
    drains_per_hour: int  # of the whole site
    resume: bool


_SITE = {
    "FFDL_RUN": "@FFDL_RUN@",
    "SLURM_ETC": "@SLURM_ETC@",
    "HEALTH_KERNEL_LOG": "@HEALTH_KERNEL_LOG@",
    "HEALTH_SLURMD_LOG": "@HEALTH_SLURMD_LOG@",
    "HEALTH_GPUS": "@HEALTH_GPUS@",
    "HEALTH_CLOCK_S": "@HEALTH_CLOCK_S@",
    "HEALTH_MOUNTS": "@HEALTH_MOUNTS@",
    "HEALTH_DISKS": "@HEALTH_DISKS@",
    "HEALTH_FULL_PERCENT": "@HEALTH_FULL_PERCENT@",
    "HEALTH_DRAIN": "@HEALTH_DRAIN@",
    "HEALTH_DRAINS_PER_HOUR": "@HEALTH_DRAINS_PER_HOUR@",
    "HEALTH_RESUME": "@HEALTH_RESUME@",
    "HEALTH_INTERVAL_S": "@HEALTH_INTERVAL_S@",
    "HEALTH_NODE_STATE": "@HEALTH_NODE_STATE@",
}


def load() -> Settings:
    """Return the values of this site. Raises ValueError with all invalid ones."""
    if any(text.startswith("@") for text in _SITE.values()):
        raise ValueError(f"{__file__} has no values of a site: run what render.py has made of it (docs/node-health.md)")
    wrong = values.wrong_in(_SITE)
    if wrong:
        faults = "; ".join(f"{__file__}: {one.text}" for one in wrong)
        raise ValueError(f"{faults}; correct the site's values, render them and install again (docs/node-health.md)")
    return Settings(
        place=Path(_SITE["FFDL_RUN"]) / "health",
        slurm_conf=Path(_SITE["SLURM_ETC"]) / "slurm.conf",
        kernel_log=_SITE["HEALTH_KERNEL_LOG"],
        slurmd_logs=_places(_SITE["HEALTH_SLURMD_LOG"]),
        gpus=_SITE["HEALTH_GPUS"] == "yes",
        clock_s=int(_SITE["HEALTH_CLOCK_S"]),
        mounts=_SITE["HEALTH_MOUNTS"],
        disks=_places(_SITE["HEALTH_DISKS"]),
        full_percent=int(_SITE["HEALTH_FULL_PERCENT"]),
        interval_s=int(_SITE["HEALTH_INTERVAL_S"]),
        drain=_SITE["HEALTH_DRAIN"] == "yes",
        drains_per_hour=int(_SITE["HEALTH_DRAINS_PER_HOUR"]),
        resume=_SITE["HEALTH_RESUME"] == "yes",
    )


def _places(text: str) -> tuple[str, ...]:
    return tuple(place for place in text.split(":") if place)

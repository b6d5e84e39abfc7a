"""Compute the values that the optimiser adds up: the value of a job for each number of GPUs.

A value combines the throughput, the job's weight, an objective, and which numbers of GPUs are permitted. Arrays are
indexed by the number of GPUs, from 0. Nothing here decides which job gets GPUs. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

STEP = 2.0**-20
"""Unit of rounded values, about a millionth of the fastest speed of a job."""


def objective_values(throughput: Floats, weight: float = 1.0, alpha: float = 0.0) -> Floats:
    """Return the alpha-fair values of throughputs: ``weight * T ** (1 - alpha) / (1 - alpha)``, or logarithms if alpha
    is 1.

    =====  ========================================================================================
    alpha  meaning of the sum of the values
    =====  ========================================================================================
    0      total throughput
    1      sum of logarithms: proportional fairness
    2      the negative of ``weight / T``: total remaining time, if `weight` is the remaining work
    =====  ========================================================================================

    The larger alpha is, the more weight slow jobs have. A throughput of 0 means that the size is impossible: its value
    is -inf.
    """
    possible = throughput > 0
    speed = np.where(possible, throughput, 1.0)
    value = np.log(speed) if alpha == 1 else speed ** (1 - alpha) / (1 - alpha)
    return np.where(possible, weight * value, -np.inf)


def permitted_values(values: Floats, permitted: Mask, waiting: float = -np.inf) -> Floats:
    """Return the values of the permitted numbers of GPUs, -inf for all others, and `waiting` for 0 GPUs.

    If `waiting` is -inf, the job must get GPUs.
    """
    kept = np.where(permitted, values, -np.inf)
    kept[0] = waiting
    return kept


def round_values(values: Floats) -> Floats:
    """Return the values as multiples of :data:`STEP`.

    Sums of them are exact, so that the optimiser finds equal sums equal, and its choice among these does not depend on
    the last bits of predicted speeds, which differ between processors.
    """
    return np.rint(values / STEP) * STEP


def sizes_between(minimum: int, maximum: int, most: int) -> Mask:
    """Return which of the numbers 0 to `most` are in the range, both ends included."""
    sizes = np.arange(most + 1)
    return (sizes >= minimum) & (sizes <= maximum)


def whole_node_sizes(node_gpus: int, most: int) -> Mask:
    """Return which of the numbers 0 to `most` fit on one node or fill whole nodes."""
    sizes = np.arange(most + 1)
    mask: Mask = (sizes <= node_gpus) | (sizes % node_gpus == 0)
    return mask


def pinned_size(size: int, most: int) -> Mask:
    """Return a mask that permits one number: a pinned size, or the present size of a job that must not be resized."""
    mask: Mask = np.arange(most + 1) == size
    return mask

"""Who used what: the values of a report, and FfDL's published figures, which ours stand beside. Pure.

Times are seconds, hours are hours of one GPU or one CPU that was held, whether it was at work or not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HOUR_S = 3600.0

# Scalable Multi-Framework Multi-Tenant Lifecycle Management of Deep Learning Training Jobs (NIPS 2017 workshop):
# 9,498 jobs in 31 days; shares in percent.
PUBLISHED_JOBS, PUBLISHED_DAYS = 9498, 31
PUBLISHED_FRAMEWORKS: Mapping[str, float] = {"tensorflow": 69.3, "caffe": 17.7, "torch": 11.1}
PUBLISHED_GPUS: Mapping[str, float] = {"1": 53.1, "2": 21.7, "3 or more": 25.0}
PUBLISHED_LEARNERS: Mapping[str, float] = {"1": 96.2}
PUBLISHED_TIMES: Mapping[str, tuple[float, str]] = {
    "queueing": (16.0, "most within 16 s"),
    "download": (60.0, "mostly under a minute"),
}
"""Of each time the bound that the paper names, and what it says."""
BOUNDS_S: Mapping[str, tuple[float, ...]] = {
    "queueing": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384),
    "download": (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    "processing": (10, 60, 300, 900, 1800, 3600, 14400, 43200, 86400, 259200, 604800),
}
"""Upper bounds of the histograms' bins; what is above the last has one more."""
QUANTILES = (0.5, 0.9, 0.95, 0.99)
IDLE_BELOW = 0.05
"""A GPU that is at work for a smaller share of a moment is idle in it."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """What one job used in a period: a row of the accounting. `queued_s` is how long attempts waited whose wait ended
    in the period. `lost_gpu_hours` is work after the last checkpoint that nobody has."""

    job: str
    array: str
    name: str
    user: str
    uid: int
    account: str
    framework: str
    version: str
    backend: str
    gpu_type: str
    learners: int
    gpus_per_learner: float
    attempts: int
    state: str
    error_code: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    queued_s: float
    gpu_hours: float
    cpu_hours: float
    lost_gpu_hours: float
    cost: float
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The sums of one tenant, user or framework. `jobs` are those that there were in the period."""

    name: str
    jobs: int
    gpu_hours: float
    cpu_hours: float
    lost_gpu_hours: float
    cost: float


@dataclass(frozen=True, slots=True)
class Share:
    """How many jobs or learners are of a kind, and their share in percent; `published` is the paper's, None where it
    says nothing."""

    kind: str
    count: int
    percent: float
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Times of one kind that ended in the period. `counts` has one more than `bounds_s`; `quantiles_s` are by
    QUANTILES, empty without any time. `within` is the share in percent of those up to `published_s`."""

    kind: str
    count: int
    mean_s: float
    longest_s: float
    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    quantiles_s: tuple[float, ...] = ()
    published_s: float | None = None
    published: str = ""
    within: float | None = None


@dataclass(frozen=True, slots=True)
class Waste:
    """GPU-hours that came to nothing, by cause, and of how many attempts."""

    cause: str
    gpu_hours: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much the GPUs were at work, by samples. `sampled_gpu_hours` is the time that they speak of, of `gpu_hours` in
    all; `used_gpu_hours` is its part in which a kernel ran, `idle_gpu_hours` that in which hardly any did. `unread` are
    attempts whose samples were not read, because reading took too long or their files cannot be read."""

    gpu_hours: float = 0.0
    sampled_gpu_hours: float = 0.0
    used_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    unread: int = 0

    @property
    def utilisation(self) -> float | None:
        """From 0 to 1, weighted by GPU time; None where nothing was sampled."""
        return self.used_gpu_hours / self.sampled_gpu_hours if self.sampled_gpu_hours else None

    @property
    def covered(self) -> float | None:
        """The share of the GPU time that there are samples of, from 0 to 1."""
        return min(1.0, self.sampled_gpu_hours / self.gpu_hours) if self.gpu_hours else None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A period from `since` to before `until`, cut at `now` where it has not ended. Groups come by use, the largest
    first. `currency` and costs are the daemon's rates (`has_costs`)."""

    since: float
    until: float
    now: float
    jobs: int
    submitted: int
    attempts: int
    running: int
    never_ran: int
    gpu_hours: float
    cpu_hours: float
    cost: float
    currency: str = ""
    has_costs: bool = False
    all_users: bool = False
    tenants: tuple[Group, ...] = ()
    users: tuple[Group, ...] = ()
    frameworks: tuple[Group, ...] = ()
    by_framework: tuple[Share, ...] = ()
    gpus_per_learner: tuple[Share, ...] = ()
    learners_per_job: tuple[Share, ...] = ()
    times: tuple[Distribution, ...] = ()
    held: tuple[Waste, ...] = ()
    lost: tuple[Waste, ...] = ()
    efficiency: Efficiency = field(default_factory=Efficiency)


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """One job by our reckoning and by the scheduler's accounting, over all runs that have ended. GPU-seconds are None
    where the accounting counts no GPUs. `differs`: by more than was tolerated. `known` is false where the accounting
    does not have it, or what it has cannot be read: `why`."""

    job: str
    native_ids: tuple[str, ...]
    runs: int
    ours_s: float
    theirs_s: float
    ours_gpu_s: float
    theirs_gpu_s: float | None
    known: bool
    differs: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """`rows` are the jobs that differ or that the accounting does not have, the largest difference first (no more than
    are worth printing), of `compared` ones. `running` were left out. GPU-hours are those of the `gpus_counted` jobs
    that the accounting knows and counts GPUs of, on both sides. `backends` are those that keep accounts, `without`
    those of our jobs that do not."""

    compared: int
    differing: int
    unknown: int
    running: int
    ours_gpu_hours: float
    theirs_gpu_hours: float
    rows: tuple[AgreementRow, ...] = ()
    backends: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    gpus_counted: int = 0


def distribution(kind: str, times: Sequence[float]) -> Distribution:
    """Of times in seconds, in any order. Quantiles are those of the sample: the least time that so many are up to."""
    bounds, said = BOUNDS_S[kind], PUBLISHED_TIMES.get(kind)
    ordered = sorted(times)
    counts = [0] * (len(bounds) + 1)
    for one in ordered:
        counts[bisect_left(bounds, one)] += 1
    limit, words = said or (None, "")
    return Distribution(
        kind,
        len(ordered),
        math.fsum(ordered) / len(ordered) if ordered else 0.0,
        ordered[-1] if ordered else 0.0,
        tuple(float(bound) for bound in bounds),
        tuple(counts),
        tuple(ordered[math.ceil(share * len(ordered)) - 1] for share in QUANTILES) if ordered else (),
        limit,
        words,
        percent(sum(one <= limit for one in ordered), len(ordered)) if limit is not None and ordered else None,
    )


def shares(counts: Mapping[str, int], published: Mapping[str, float], order: Sequence[str] = ()) -> tuple[Share, ...]:
    """Counts as shares of all, in `order`, or else the largest first; what is published alone comes as well."""
    whole = sum(counts.values())
    names = order or sorted(
        {*counts, *published}, key=lambda name: (-counts.get(name, 0), -published.get(name, 0), name)
    )
    return tuple(
        Share(name, counts.get(name, 0), percent(counts.get(name, 0), whole), published.get(name))
        for name in names
        if name in counts or name in published
    )


def percent(part: float, whole: float) -> float:
    """0 of nothing."""
    return 100.0 * part / whole if whole else 0.0


def kind_of_gpus(gpus: float) -> str:
    """In the paper's classes, and those that it has not."""
    if gpus <= 0:
        return "none"
    if gpus < 1:
        return "less than 1"
    whole = math.ceil(gpus)
    return str(whole) if whole < 3 else "3 or more"


def kind_of_learners(learners: int) -> str:
    """1, or powers of two."""
    if learners <= 2:
        return str(learners)
    high = 1 << (learners - 1).bit_length()
    return f"{high // 2 + 1} to {high}"


GPU_KINDS = ("none", "less than 1", "1", "2", "3 or more")

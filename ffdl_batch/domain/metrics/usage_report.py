"""Values of a usage report, with FfDL's published figures for comparison. Pure.

Times are seconds; hours are hours of one GPU or one CPU that was held, busy or not.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field

from ffdl_batch.host.fast_dataclass import dataclass

HOUR_S = 3600.0
NO_TENANT = "-"
"""Name of the group of jobs without a tenant."""

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
"""For each time the bound that the paper names, and its words."""
BOUNDS_S: Mapping[str, tuple[float, ...]] = {
    "queueing": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384),
    "download": (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    "processing": (10, 60, 300, 900, 1800, 3600, 14400, 43200, 86400, 259200, 604800),
}
"""Upper bounds of the histograms' bins; one more bin has what is above the last."""
QUANTILES = (0.5, 0.9, 0.95, 0.99)
IDLE_BELOW = 0.05
"""A GPU that is busy for a smaller share of an interval is idle in it."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """What one job used in a period: a row of the accounting."""

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
    """Waits of attempts that ended in the period."""
    gpu_hours: float
    cpu_hours: float
    lost_gpu_hours: float
    """Work after the last checkpoint that was lost."""
    cost: float
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The sums of one tenant, user or framework."""

    name: str
    jobs: int
    """Jobs that existed in the period."""
    gpu_hours: float
    cpu_hours: float
    lost_gpu_hours: float
    cost: float


@dataclass(frozen=True, slots=True)
class Share:
    """How many jobs or learners are of a kind, and their share in percent."""

    kind: str
    count: int
    percent: float
    published: float | None = None
    """The paper's share; None = it has none."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Times of one kind that ended in the period."""

    kind: str
    count: int
    mean_s: float
    longest_s: float
    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than `bounds_s`."""
    quantiles_s: tuple[float, ...] = ()
    """By QUANTILES; empty without any time."""
    published_s: float | None = None
    published: str = ""
    within: float | None = None
    """Share in percent of the times up to `published_s`."""


@dataclass(frozen=True, slots=True)
class Waste:
    """Wasted GPU-hours by cause, and the number of attempts."""

    cause: str
    gpu_hours: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How busy the GPUs were, by samples."""

    gpu_hours: float = 0.0
    sampled_gpu_hours: float = 0.0
    """The part of `gpu_hours` that has samples."""
    used_gpu_hours: float = 0.0
    """The part of the sampled time in which a kernel ran."""
    idle_gpu_hours: float = 0.0
    """The part of the sampled time in which the GPU was idle."""
    unread: int = 0
    """Attempts whose samples were not read, because reading took too long or their files cannot be read."""

    @property
    def utilisation(self) -> float | None:
        """From 0 to 1, weighted by GPU time; None where nothing was sampled."""
        return self.used_gpu_hours / self.sampled_gpu_hours if self.sampled_gpu_hours else None

    @property
    def covered(self) -> float | None:
        """The share of the GPU time that has samples, from 0 to 1."""
        return min(1.0, self.sampled_gpu_hours / self.gpu_hours) if self.gpu_hours else None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """A period from `since` to before `until`, cut at `now` if it has not ended. Groups are ordered by use."""

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
    """Whether the daemon has rates, from which `currency` and the costs are."""
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
class SiteUsage:
    """What all users held from `since` to `until`, according to the scheduler's accounting. Groups are ordered by
    use."""

    since: float
    until: float
    jobs: int
    gpu_hours: float
    cpu_hours: float
    lost_gpu_hours: float
    """Lost by incidents that the hub knows."""
    tenants: tuple[Group, ...] = ()
    users: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """One job in our records and in the scheduler's accounting, over all runs that have ended."""

    job: str
    native_ids: tuple[str, ...]
    runs: int
    ours_s: float
    theirs_s: float
    ours_gpu_s: float
    theirs_gpu_s: float | None
    """None = the accounting counts no GPUs."""
    known: bool
    """False if the accounting does not have the job, or its record cannot be read; see `why`."""
    differs: bool
    """Whether the difference is above the tolerance."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Our records of a period compared with the accounting."""

    compared: int
    differing: int
    unknown: int
    running: int
    """Jobs that were left out because they run."""
    ours_gpu_hours: float
    """Of the `gpus_counted` jobs; so is `theirs_gpu_hours`."""
    theirs_gpu_hours: float
    rows: tuple[AgreementRow, ...] = ()
    """Jobs that differ or that the accounting does not have, the largest difference first; no more than are worth
    printing."""
    backends: tuple[str, ...] = ()
    """Backends with an accounting."""
    without: tuple[str, ...] = ()
    """Backends of our jobs that have none."""
    gpus_counted: int = 0
    """Jobs that the accounting knows and counts GPUs of."""


def distribution(kind: str, times: Sequence[float]) -> Distribution:
    """Return the distribution of times in seconds, in any order. A quantile is the least time of the sample that so
    many are not above."""
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
    """Return counts as shares of all, in `order`, or else the largest first. Kinds that only the paper has are
    included."""
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
    """Return `part` in percent of `whole`; 0 if `whole` is 0."""
    return 100.0 * part / whole if whole else 0.0


def kind_of_gpus(gpus: float) -> str:
    """Return the class of the paper, or one that it does not have."""
    if gpus <= 0:
        return "none"
    if gpus < 1:
        return "less than 1"
    whole = math.ceil(gpus)
    return str(whole) if whole < 3 else "3 or more"


def kind_of_learners(learners: int) -> str:
    """Return 1, 2, or a range between powers of two."""
    if learners <= 2:
        return str(learners)
    high = 1 << (learners - 1).bit_length()
    return f"{high // 2 + 1} to {high}"


GPU_KINDS = ("none", "less than 1", "1", "2", "3 or more")

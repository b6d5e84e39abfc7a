"""Compare the reported speeds of two jobs that share a GPU with their speeds alone. Pure.

Jobs without GPUs share CPUs in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import stdev

from ffdl_batch.domain.metrics.rates import Rates
from ffdl_batch.host.fast_dataclass import dataclass

PAYS = 1.05
"""Minimum gain with which sharing pays."""
ERRORS = 2.0
"""The spread of a gain, in standard errors: the range of 95 % of repetitions, if reports are independent."""
PER = 1000
"""Number of samples that costs refer to."""
Reports = Sequence[tuple[float, float]]
"""Time (seconds since the epoch) and samples per second of each report, oldest first."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The mean speed in a period."""

    samples_per_s: float
    seconds: float
    reports: int
    error: float | None = None
    """Standard error of the mean, in samples per second; None = unknown, because there was only one report."""


@dataclass(frozen=True, slots=True)
class Held:
    """The resources of a run. Shares of a GPU count as fractions."""

    gpus: float
    cpus: float
    nodes: str = ""
    devices: tuple[str, ...] = ()
    """See :class:`ffdl_batch.domain.job.views.JobView`."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job, alone or together with the other job."""

    job_id: str
    held: Held
    speed: Measured
    device_s: float
    """GPU-seconds of PER samples, or CPU-seconds of a job without GPUs."""
    cost: float
    """Price of PER samples."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One of the two jobs."""

    manifest: str
    """Name of the manifest; two jobs with the same manifest are numbered."""
    alone: Run
    together: Run
    kept: float
    """Speed while sharing, as a fraction of the speed alone."""
    samples: float | None = None
    """Samples of the whole job, from its first report of remaining samples; None = it reported none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for two jobs."""

    subjects: tuple[Subject, Subject]
    resource: str
    """GPU or CPU."""
    same_device: bool | None
    """Whether both had shares of the same GPU, or CPUs of the same node; None = unknown, but they ran on the same
    node."""
    gain: float | None
    """Work of a GPU with both jobs at once, relative to one after the other; None if they did not share a device."""
    spread: float | None
    """How far the gain may be from that of a longer measurement; None = unknown."""
    pays: bool | None
    """None = there is no gain, or it is not clear, because the gain differs from 1 by less than its spread."""
    sentences: tuple[str, ...]
    """The result and its reasons."""
    currency: str = ""
    has_costs: bool = False


def common_start(reports: Sequence[Reports]) -> float | None:
    """Return the time at which every job had reported once; None if one has not. The first report includes the
    warm-up."""
    return max(one[0][0] for one in reports) if all(reports) else None


def is_measured(reports: Sequence[Reports], since: float, seconds: float) -> bool:
    """Return whether the reports of each job cover the period and contain at least one interval."""
    return all(one[-1][0] >= since + seconds and measure(one, since, seconds) is not None for one in reports)


def measure(reports: Reports, since: float, seconds: float) -> Measured | None:
    """Return the mean speed over the report intervals that began in the period; None if there is none. A report covers
    the time since the previous one."""
    spans = [
        (after - before, speed)
        for (before, _), (after, speed) in pairwise(reports)
        if since <= before < since + seconds and after > before
    ]
    length = sum(span for span, _ in spans)
    if not spans:
        return None
    error = stdev(speed for _, speed in spans) / math.sqrt(len(spans)) if len(spans) > 1 else None
    return Measured(sum(span * speed for span, speed in spans) / length, length, len(spans), error)


def make_run(job_id: str, held: Held, speed: Measured, rates: Rates, gpu_type: str) -> Run:
    """Return the run with its costs."""
    seconds = PER / speed.samples_per_s
    devices = held.gpus or held.cpus
    cost = rates.cost(held.gpus * seconds, held.cpus * seconds, gpu_type)
    return Run(job_id, held, speed, devices * seconds, cost)


def make_subject(manifest: str, alone: Run, together: Run, samples: float | None) -> Subject:
    """Return the job with its speed while sharing, relative to the speed alone."""
    return Subject(manifest, alone, together, together.speed.samples_per_s / alone.speed.samples_per_s, samples)


def compare(subjects: tuple[Subject, Subject], rates: Rates, *, isolated: bool) -> Comparison:
    """Return the result. `isolated`: the shares are separate devices (MIG), so they may be on different GPUs."""
    has_gpus = any(one.alone.held.gpus for one in subjects)
    resource = "GPU" if has_gpus else "CPU"
    same = _same_device(subjects, has_gpus=has_gpus)
    gain = spread = pays = None
    if isolated or same is not False:
        parts = _parts(subjects) if isolated else 1.0
        gain, spread = sum(one.kept for one in subjects) / parts, _spread(subjects, parts)
        pays = None if spread is not None and abs(gain - 1) < spread else gain >= PAYS
    said = [_refusal(subjects, resource) if gain is None else _verdict(gain, spread, pays, subjects, resource)]
    if gain is not None and not isolated and same is None:
        said.append(
            f"The GPU of each job is unknown. Both ran on {subjects[0].together.held.nodes}; if that node has several "
            "GPUs, the jobs may have used different ones."
        )
    if gain is not None and spread is None:
        said.append(
            "A run had only one report, so it is unknown how far the result varies. Measure for longer: --seconds."
        )
    if gain is not None:
        said += [_change(one, resource) for one in subjects]
    return Comparison(subjects, resource, same, gain, spread, pays, tuple(said), rates.currency, rates.is_set)


def _same_device(subjects: tuple[Subject, Subject], *, has_gpus: bool) -> bool | None:
    one, other = (subject.together.held for subject in subjects)
    if has_gpus and one.devices and other.devices:
        return one.devices == other.devices
    if one.nodes != other.nodes:
        return False
    return None if has_gpus else True


def _parts(subjects: tuple[Subject, Subject]) -> float:
    """Return the fraction of a GPU that both jobs hold together."""
    return sum(one.together.held.gpus / one.alone.held.gpus for one in subjects if one.alone.held.gpus) or 1.0


def _spread(subjects: tuple[Subject, Subject], parts: float) -> float | None:
    """Return the spread of the gain, from the errors of all four speeds; None if one is unknown."""
    square = 0.0
    for one in subjects:
        for speed in (one.alone.speed, one.together.speed):
            if speed.error is None:
                return None
            square += (one.kept * speed.error / speed.samples_per_s) ** 2
    return ERRORS * math.sqrt(square) / parts


def _refusal(subjects: tuple[Subject, Subject], resource: str) -> str:
    places = [" ".join(one.together.held.devices) or one.together.held.nodes for one in subjects]
    what = resource if resource == "GPU" else "node"
    return (
        f"The jobs did not share a {what}: {subjects[0].manifest} had {places[0]}, "
        f"and {subjects[1].manifest} had {places[1]}. This run does not show whether sharing pays."
    )


def _verdict(
    gain: float, spread: float | None, pays: bool | None, subjects: tuple[Subject, Subject], resource: str
) -> str:
    what = "a GPU does" if resource == "GPU" else "the same CPUs do"
    times = f"{gain:.2f}" + (f" ± {spread:.2f}" if spread is not None and spread >= 0.005 else "")
    work = f"with both jobs at once, {what} {times} times as much work as with one job after the other"
    if pays is None:
        return f"It is not clear whether sharing pays: {work}. Measure for longer: --seconds."
    if pays:
        return f"Sharing pays: {work}."
    first, second = (f"{one.manifest} keeps {one.kept:.0%}" for one in subjects)
    return f"Sharing does not pay: {work}. {first} of its speed, and {second}."


def _change(subject: Subject, resource: str) -> str:
    """Return how much sharing changes the cost of a sample, or its device time if there are no prices."""
    alone, together = subject.alone, subject.together
    if alone.cost:
        what = f"costs {_percent(together.cost / alone.cost)} per sample"
    else:
        what = f"needs {_percent(together.device_s / alone.device_s)} {resource} time per sample"
    return f"{subject.manifest} {what} than alone, and takes {1 / subject.kept:.2f} times as long."


def _percent(ratio: float) -> str:
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'}"

"""The judge: pure, and strict. What was not looked at does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CONTROLS = ("kept for the user", "file of the attempt", "learner's environment", "read by the learner")
"""Where secrets must be found while a job runs, or that nothing was found elsewhere says nothing."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended, and how it must: state and error code."""

    was: tuple[str, str]
    must: tuple[str, str] = ("COMPLETED", "000")


@dataclass(frozen=True, slots=True)
class Moved:
    """Files that were compared byte by byte or by digest, their bytes, and a sentence for each that is not right."""

    files: int = 0
    size: int = 0
    wrong: Sequence[str] = ()

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.files + other.files, self.size + other.size, [*self.wrong, *other.wrong])


@dataclass(frozen=True, slots=True)
class Many:
    """Small files in and out, of a store that is quick, and the seconds that each took."""

    files_in: int = 0
    in_s: float = 0.0
    files_out: int = 0
    out_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """What the proof saw."""

    jobs: Mapping[str, Ended] = field(default_factory=dict)
    came: Moved = Moved()
    went: Moved = Moved()
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each kind was met."""
    secrets: Sequence[str] = ()
    """Where a secret must not be, and is."""
    searched: int = 0
    """Files, answers and processes in which they were looked for."""
    controls: Mapping[str, bool] = field(default_factory=dict)
    downloads: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of each data set that is cached: how often each object was downloaded, divided by the number of caches."""
    records: int = 0
    """Of metrics that were compared."""
    strange: Sequence[str] = ()
    """Records that are not as planted."""
    mounts: Mapping[str, bool] = field(default_factory=dict)
    """Kinds of stores, mounted and brought: whether the node did so."""
    many: Many = Many()

    @property
    def mismatches(self) -> int:
        """Of files and of records."""
        return len(self.came.wrong) + len(self.went.wrong) + len(self.strange)

    def troubles(self) -> list[str]:
        """A sentence for each thing that is not as it must be."""
        said = [
            f"{name} ended as {' '.join(one.was)}, not {' '.join(one.must)}"
            for name, one in self.jobs.items()
            if one.was != one.must
        ]
        said += [*self.came.wrong, *self.went.wrong, *self.strange]
        said += [f"a secret is in {place}" for place in self.secrets]
        said += [f"no secret where one must be: {name}" for name in CONTROLS if not self.controls.get(name)]
        said += [f"the fault was not met: {name}" for name, times in self.faults.items() if not times]
        for name, times in self.downloads.items():
            if not times or set(times) != {1.0}:
                said.append(f"data set {name} was downloaded {_span(times)} times per cache")
        said += [f"a store was not {name.rpartition(' ')[2]}: {name}" for name, was in self.mounts.items() if not was]
        counted = {
            "no store was mounted": self.mounts,
            "no job": self.jobs,
            "no data came": self.came.size,
            "no results went": self.went.size,
            "nothing was searched for secrets": self.searched,
            "no faults": self.faults,
            "no data set was cached": self.downloads,
            "no metrics were compared": self.records,
            "no small files": self.many.files_in,
        }
        return said + [name for name, count in counted.items() if not count]

    @property
    def holds(self) -> bool:
        """Whether all is as it must be."""
        return not self.troubles()

    def report(self) -> str:
        """The counts; the last line has those that decide."""
        right = sum(one.was == one.must for one in self.jobs.values())
        faults = ", ".join(f"{name} {times}" for name, times in self.faults.items())
        downloads = ", ".join(f"{name} {_span(times)}" for name, times in self.downloads.items())
        controls = sum(bool(self.controls.get(name)) for name in CONTROLS)
        return (
            f"jobs {len(self.jobs)}, ended as they must {right}\n"
            f"faults met: {faults}\n"
            f"files in {self.came.files}, files out {self.went.files}\n"
            "small files of the project's own quick store (quick_s3, which checks no keys; all else is of moto's): "
            f"{self.many.files_in} in {self.many.in_s:.1f} s, {self.many.files_out} out {self.many.out_s:.1f} s\n"
            f"stores: {', '.join(name for name, was in self.mounts.items() if was)}\n"
            f"searched for secrets: {self.searched} files, answers and processes; "
            f"found where they must be {controls} of {len(CONTROLS)}\n"
            f"downloads per data set and cache: {downloads}\n"
            f"bytes in {self.came.size} bytes out {self.went.size} metric records compared {self.records} "
            f"mismatches {self.mismatches} secrets found {len(self.secrets)}"
        )


def _span(times: Sequence[float]) -> str:
    """``1``, or ``0 to 2.5``."""
    ends = sorted({min(times, default=0.0), max(times, default=0.0)})
    return " to ".join(f"{end:.3g}" for end in ends)

"""What collects a job's metrics on the nodes: fields of the launch file. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ffdl_batch.domain.job.metric_collection import collecting_of
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.metrics.records import Collecting
from ffdl_batch.runtimes.learner_start import controller_arguments

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from ffdl_batch.collectors.__main__ import main; sys.exit(main())"
)


@dataclass(frozen=True, slots=True)
class Metering:
    """The launch file's `collectors` and `metrics`; `warnings` for the plan."""

    collectors: tuple[str, ...] = ()
    metrics: Collecting | None = None
    warnings: tuple[str, ...] = ()


def plan_metrics(spec: JobSpec, python: str, controller: tuple[str, ...], staging: tuple[str, ...] = ()) -> Metering:
    """`controller` is the argv after `python` that starts the controller: where that is this installation, and no
    archive of the controller alone, nodes see the collectors, too. Else the installation that `staging` is started from
    has them; and an interpreter that the site names for its nodes may have them: without, the job is warned when it
    runs."""
    metrics = collecting_of(spec.metrics)
    if metrics is None:
        return Metering()
    place = controller[-1] if controller else ""
    if controller == controller_arguments(place) and not place.endswith(".pyz"):
        return Metering((python, "-I", "-c", _START, place), metrics)
    interpreter = staging[0] if staging else python
    if interpreter.startswith("/"):
        return Metering((interpreter, "-I", "-m", "ffdl_batch.collectors"), metrics)
    message = "compute nodes do not see this installation, so nothing collects metrics there"
    cure = "put it on a file system that nodes share, or name an interpreter in staging_python"
    return Metering(warnings=(f"evaluation_metrics: {message} ({cure})",))

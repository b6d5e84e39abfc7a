"""Collectors: how fast they read a log and an event file that are there already, beside grep and TensorBoard's reader.

Needs neither a cluster nor root. A collector runs as on a node: a process, from its start to its end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ffdl_batch.domain.metrics.records import CollectorSpec, ExtractionGroup, Measure, encode_spec
from tests.benchmarks.figures import Figure
from tests.benchmarks.knobs import Knobs
from tests.unit.collectors.writers import write

LINES, HITS = 200_000, 10
"""Lines of the log; each so many-th has a loss."""
EVENTS = 30_000
LOSS = ExtractionGroup(
    "train",
    "step %{INT:step} loss %{FLOAT:loss}",
    scalars={"loss": Measure("FLOAT", "$loss")},
    etimes={"iteration": Measure("INT", "$step")},
)
READER = (
    "import sys; from tensorboard.backend.event_processing.event_file_loader import EventFileLoader; "
    "print(sum(1 for _ in EventFileLoader(sys.argv[1]).Load()))"
)


def measure_collectors(knobs: Knobs) -> list[Figure]:
    """Lines and events a second of each; `rounds` runs."""
    with tempfile.TemporaryDirectory(prefix="ffdl-bench-") as directory:
        base = Path(directory)
        log, events = _write_log(base / "log"), _write_events(base / "events")
        measured = (
            ("log lines, regex_extractor", "ffdl", "lines/s", LINES, _collector(base, "regex_extractor", log.parent)),
            (
                "log lines, regex_extractor",
                "grep -E",
                "lines/s",
                LINES,
                _plain("grep", "-cE", r"step [0-9]+ loss", log),
            ),
            ("scalars, tensorboard", "ffdl", "scalars/s", EVENTS, _collector(base, "tensorboard", events.parent)),
            ("scalars, tensorboard", "tensorboard", "scalars/s", EVENTS, _plain(sys.executable, "-c", READER, events)),
        )
        return [
            Figure("metrics", measure, who, unit, [count / _timed(run) for _ in range(knobs.rounds)])
            for measure, who, unit, count, run in measured
        ]


def _write_log(directory: Path) -> Path:
    directory.mkdir()
    path = directory / "training-log.txt"
    with path.open("w") as file:
        for number in range(LINES):
            said = (
                f"step {number} loss {1 / (number + 1):.6f}"
                if number % HITS == 0
                else f"batch {number} of {LINES} done"
            )
            file.write(f"{said}\n")
    return path


def _write_events(directory: Path) -> Path:
    return write(directory, [(step, {"loss": 1 / (step + 1)}) for step in range(EVENTS)])


def _collector(base: Path, kind: str, logs: Path) -> Callable[[], None]:
    """A run over all that is there; its records are counted."""
    groups, wanted = ((LOSS,), LINES // HITS) if kind == "regex_extractor" else ((), EVENTS)
    out, stop, spec = base / f"{kind}.jsonl", base / "stop", base / f"{kind}.json"
    stop.touch()
    spec.write_text(encode_spec(CollectorSpec(kind, "t", 1, str(logs), str(out), str(stop), groups, 0)))

    def run() -> None:
        for left in (out, Path(f"{out}.position")):
            left.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "ffdl_batch.collectors", spec], check=True, stdout=subprocess.DEVNULL)
        with out.open("rb") as file:
            records = sum(1 for _ in file)
        assert records == wanted, f"{records} records of {wanted}"

    return run


def _plain(*argv: str | Path) -> Callable[[], None]:
    return lambda: _run(argv)


def _run(argv: tuple[str | Path, ...]) -> None:
    """Its output goes into a pipe: with /dev/null grep(1) would end at the first match."""
    subprocess.run([*argv], check=True, capture_output=True)


def _timed(run: Callable[[], None]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began

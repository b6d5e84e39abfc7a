"""`ffdl advise`: what is printed, as a whole."""

from __future__ import annotations

from pathlib import Path

from ffdl_batch.domain.metrics.advice import Advice, CheckpointAdvice, Choice, Form, MemoryAdvice
from tests.unit.cli.programs import FFDL, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon

ADVICE = Advice(
    "digits", "custom", "slurm", ("training-000000002", "training-000000001"),
    (
        Choice(Form(1, 1.0), 1, 100.2, 0.08, False, 0.0, 3742.0, 1.039, 5.2, 4.68, 4500),
        Choice(Form(1, 2.0), 2, 180.4, 0.081, False, 0.1, 2146.0, 1.192, 2.98, 3.87, 2700, recommended=True),
        Choice(Form(1, 4.0), 4, 306.0, 0.21, True, 0.2),
    ),
    MemoryAdvice(3_600_000_000, 3_000_000_000, 2), CheckpointAdvice(1806.0, 27.0, 2, 3, 180_720.0), ("a note",),
    (Form(1, 1.0), Form(2, 4.0)), "EUR", has_costs=True,
)  # fmt: skip
SHOWN = """\
Advice for:          digits (custom on slurm)
Based on:            2 jobs: training-000000002 training-000000001
   GPUS  LEARNERS  SAMPLES/S  TIME    GPU-HOURS  COST EUR  TIME LIMIT
   1     1         100 ± 8%   62 min  1.04       4.68      01:15:00
*  2     1         180 ± 8%   36 min  1.19       3.87      00:45:00
   4     1         306 ± 21%  -       -          -         -           extrapolated
Memory:              3.6GB for each learner  [2 attempts measured; highest: 3GB]
Checkpoint every:    30 min  [a checkpoint takes 27 s (measured 2 times); 3 preemptions in 50.2 hours]
Note: a note
"""


def test_advise_prints_choices_memory_checkpoint_interval_and_notes(daemon: FakeDaemon, manifest: Path) -> None:
    daemon.advice = ADVICE
    done = run(FFDL, "advise", manifest, daemon=daemon)
    assert (done.stdout, done.stderr, done.returncode) == (SHOWN, "", 0)
    (document,) = json_lines(run(FFDL, "advise", "--json", manifest, daemon=daemon).stdout)
    assert [one["recommended"] for one in document["advice"]["choices"]] == [False, True, False]


def test_advise_prints_batches_and_cpu_hours_of_job_without_gpus(daemon: FakeDaemon, manifest: Path) -> None:
    choice = Choice(Form(2, 0.0, 16), 2, time_s=1800.0, gpu_hours=0.0, cpu_hours=2.0, time_limit_s=2400)
    daemon.advice = Advice("digits", "custom", "local", ("training-000000001",), (choice,))
    shown = run(FFDL, "advise", manifest, daemon=daemon).stdout.splitlines()
    assert [line.split() for line in shown[2:]] == [
        ["LEARNERS", "BATCH", "TIME", "CPU-HOURS", "TIME", "LIMIT"], ["2", "16", "30", "min", "2", "00:40:00"],
    ]  # fmt: skip


def test_advise_profile_prints_commands_that_measure(daemon: FakeDaemon, manifest: Path) -> None:
    daemon.advice = ADVICE
    done = run(FFDL, "advise", "--profile", manifest, daemon=daemon)
    assert done.stdout == (
        f"ffdl-submit --backend slurm --learners 1 --gpus 1 --time 10 {manifest} MODEL\n"
        f"ffdl-submit --backend slurm --learners 2 --gpus 4 --time 10 {manifest} MODEL\n"
    )


def test_advise_profile_names_missing_extra(daemon: FakeDaemon, manifest: Path) -> None:
    done = run(FFDL, "advise", "--profile", manifest, daemon=daemon)
    assert done.returncode == 2 and "pip install 'ffdl-batch[elastic]'" in done.stderr

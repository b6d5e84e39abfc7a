"""The node controller with real collectors: they are started, started again, told to end, and stored with the log."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.controller.metrics.collector_process import make_spec
from ffdl_batch.controller.metrics.monitor import Monitor
from ffdl_batch.domain.job.elastic import Elastic
from ffdl_batch.domain.job.spec import BatchOptions, EvaluationMetrics, Framework, JobSpec, MetricGroup, MetricValue
from ffdl_batch.domain.metrics.learner_reports import last_hint, throughputs
from ffdl_batch.domain.metrics.records import Collecting, ExtractionGroup, Measure, MetricRecord, decode_record
from ffdl_batch.domain.metrics.usage import UsageSample, decode_sample
from ffdl_batch.domain.outcome.controller_events import EventKind
from ffdl_batch.host.processes import all_processes
from ffdl_batch.runtimes.launch_plan import plan_metrics
from ffdl_batch.runtimes.learner_start import controller_arguments
from tests.contract.controller_rig import ROOT, Rig
from tests.contract.controller_rig import rig as running

LOSS = ExtractionGroup(
    "train", "loss %{INT:step} %{FLOAT:loss}", scalars={"loss": Measure("FLOAT", "$loss")},
    etimes={"iteration": Measure("INT", "$step")},
)  # fmt: skip
BY_LOG = Collecting("regex_extractor", (LOSS,), 0)
PROGRAM = (sys.executable, "-m", "ffdl_batch.collectors")
SLOW_LOSSES = (
    "for i in 1 2 3; do echo loss $i 0.$i; sleep 0.4; done; until [ -e $RESULT_DIR/../go ]; do sleep 0.1; done; "
    "for i in 4 5 6; do echo loss $i 0.$i; sleep 0.4; done"
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path) as made:
        yield made


def records(rig: Rig, learner: int = 1) -> list[MetricRecord]:
    path = Path(rig.attempt.learner_metrics(learner))
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    found = [decode_record(line) for line in lines]
    assert [record.rindex for record in found] == list(range(1, len(found) + 1))
    return found


def losses(rig: Rig, learner: int = 1) -> list[str]:
    return [record.values["loss"].value for record in records(rig, learner)]


def usage(rig: Rig) -> list[UsageSample]:
    lines = Path(rig.attempt.usage(0)).read_text().splitlines()
    found = [sample for sample in map(decode_sample, lines) if sample is not None]
    assert len(found) == len(lines)
    return found


def warnings(rig: Rig) -> list[str]:
    return [str(event.fields["message"]) for event in rig.events() if event.kind is EventKind.METRICS]


def collectors_of(rig: Rig) -> list[int]:
    specs = rig.attempt.collector_spec(1).encode()
    return [pid for pid in all_processes() if specs in _argv(pid)]


def _argv(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def test_regex_metrics_are_extracted_from_log_and_stored_with_it(rig: Rig) -> None:
    """By what is planned for the manifest's group."""
    group = MetricGroup(
        "loss %{INT:step} %{FLOAT:loss}", "$when", {"loss": MetricValue("float", "$loss")},
        {"iteration": MetricValue("INT", "$step")},
    )  # fmt: skip
    wanted = EvaluationMetrics("regex_extractor", groups={"g": group})
    spec = JobSpec("a", Framework("custom", "1", "true"), metrics=wanted)
    planned = plan_metrics(spec, sys.executable, controller_arguments(str(ROOT)))
    command = 'echo "loss 1 0.5"; echo "loss 2 0.25"; echo own > "$LOG_DIR/notes"'
    rig.write(command, collectors=planned.collectors, metrics=planned.metrics)
    assert rig.run() == 0
    assert losses(rig) == ["0.5", "0.25"]
    assert [record.etimes["iteration"].value for record in records(rig)] == ["1", "2"]
    stored = rig.store / "learner-1" / "evaluation-metrics.txt"
    assert [decode_record(line).values["loss"].value for line in stored.read_text().splitlines()] == ["0.5", "0.25"]
    assert warnings(rig) == [] and collectors_of(rig) == []


def test_reports_of_elastic_job_become_metrics(rig: Rig) -> None:
    elastic = BatchOptions(elasticity=Elastic(1, 2, 1, 2, 2, 1))
    spec = JobSpec("a", Framework("custom", "1", "true"), batch=elastic)
    planned = plan_metrics(spec, sys.executable, controller_arguments(str(ROOT)))
    command = "echo ffdl-throughput: samples=100 seconds=2; echo ffdl-scale: -1"
    rig.write(command, collectors=planned.collectors, metrics=planned.metrics)
    assert rig.run() == 0
    assert [speed for _, speed in throughputs(records(rig))] == [50.0] and last_hint(records(rig)) == -1
    assert warnings(rig) == []


def test_reports_are_collected_from_first_learner_only(rig: Rig) -> None:
    reports = rig.write("true", collectors=PROGRAM, metrics=Collecting("regex_extractor"))
    assert make_spec(reports, 1) is not None and make_spec(reports, 2) is None
    assert make_spec(rig.write("true", collectors=PROGRAM, metrics=BY_LOG), 2) is not None


def test_tensorboard_event_files_are_collected_and_stored(rig: Rig) -> None:
    code = (
        "import os; from pathlib import Path; from tests.unit.collectors.writers import write; "
        "place = Path(os.environ['JOB_STATE_DIR'], 'logs', 'tb', 'test'); "
        "write(place, [(1, {'accuracy': 0.5}), (2, {'accuracy': 1.5})])"
    )
    rig.write(f'PYTHONPATH={ROOT} {sys.executable} -c "{code}"', collectors=PROGRAM, metrics=Collecting("tensorboard"))
    assert rig.run() == 0
    found = [
        (record.group, record.etimes["iteration"].value, record.values["accuracy"].value) for record in records(rig)
    ]
    assert found == [("test", "1", "0.5"), ("test", "2", "1.5")]
    assert (rig.store / "learner-1" / "evaluation-metrics.txt").exists()


def test_metric_records_written_by_learner_are_stored_once(rig: Rig) -> None:
    line = '{"grouplabel": "val", "values": {"loss": {"type": "FLOAT", "value": "0.5"}}}'
    rig.write(
        f"echo '{line}' > $LOG_DIR/evaluation-metrics.txt", collectors=PROGRAM, metrics=Collecting("emetrics_file")
    )
    assert rig.run() == 0
    assert losses(rig) == ["0.5"]
    assert (rig.store / "learner-1" / "evaluation-metrics.txt").read_text() == f"{line}\n"


def test_restarted_collector_records_each_metric_once_after_kill(rig: Rig) -> None:
    rig.write(SLOW_LOSSES, collectors=PROGRAM, metrics=BY_LOG)
    head = rig.start()
    for _ in range(2):
        rig.wait(lambda: bool(collectors_of(rig)), "the collector")
        for pid in collectors_of(rig):
            os.kill(pid, signal.SIGKILL)
        rig.wait(lambda: not collectors_of(rig), "the collector's end")
    Path(rig.attempt.path, "go").touch()
    assert head.wait(timeout=240) == 0
    assert losses(rig) == [f"0.{i}" for i in range(1, 7)]
    assert warnings(rig) == []


def test_collector_without_protobuf_causes_warning_and_attempt_succeeds(rig: Rig) -> None:
    code = "import sys; sys.modules['google.protobuf'] = None; from ffdl_batch.collectors.__main__ import main; main()"
    broken = (sys.executable, "-c", code.replace("main()", "sys.exit(main())"))
    rig.write("echo loss 1 0.5", collectors=broken, metrics=Collecting("tensorboard"))
    assert rig.run() == 0
    assert [one for one in warnings(rig) if "install ffdl-batch[tensorboard]" in one]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("/nowhere/python",), "cannot be started"),
        ((sys.executable, "-c", "raise SystemExit('something odd')"), "something odd"),
    ],
)
def test_collector_program_failure_is_warned_once(rig: Rig, argv: tuple[str, ...], said: str) -> None:
    rig.write("sleep 1; true", collectors=argv, metrics=BY_LOG)
    assert rig.run() == 0
    assert len(warnings(rig)) == 1 and said in warnings(rig)[0]


def test_stuck_collector_is_killed_after_bounded_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.controller.metrics.monitor.LEAST_END_S", 0.5)
    stuck = (sys.executable, "-c", "import time; time.sleep(600)")
    launch = rig.write("true", collectors=stuck, metrics=BY_LOG)
    told = Journal(str(rig.base / "events.jsonl"), "node-0")
    meter = Monitor(launch, 0, [1], told)
    meter.begin(dict, {})
    rig.wait(lambda: bool(meter.pids), "the collector")
    (pid,) = meter.pids
    meter.finish(0.1)
    assert [one for one in told.events if "0.5 s after the learner had ended" in str(one.fields["message"])]
    rig.wait(lambda: pid not in all_processes(), "the collector's end")


def test_collector_ends_with_killed_controllers_and_next_run_continues(rig: Rig) -> None:
    lines = "echo loss 1 0.1; sleep 1.5; echo loss 2 0.2; [ -e $RESULT_DIR/../go ] || sleep 600"
    rig.write(lines, collectors=PROGRAM, metrics=BY_LOG)
    rig.start()
    rig.wait(lambda: bool(losses(rig)), "a loss")
    rig.kill_controllers()
    rig.wait(lambda: not collectors_of(rig), "the collector's end")
    Path(rig.attempt.path, "go").touch()
    assert rig.run() == 0, rig.errors
    # The learner ran again and its log went on: what either run printed is there once.
    printed = [line.split()[2] for line in rig.log().splitlines() if line.startswith("loss")]
    assert losses(rig) == printed and printed[-2:] == ["0.1", "0.2"]
    assert Path(rig.store, "learner-1", "evaluation-metrics.txt").read_text().count("\n") == len(printed)


def test_usage_samples_record_learner_memory_and_stay_out_of_store(rig: Rig) -> None:
    busy = (
        "import os, time\nx = bytearray(50_000_000)\nwhile time.process_time() < 0.5: pass\nprint(1)\ntime.sleep(2)\n"
    )
    rig.write("python3 main.py", model={"main.py": busy})
    assert rig.run() == 0
    samples = usage(rig)
    assert len(samples) >= 2 and {sample.host for sample in samples} == {os.uname().nodename}
    assert samples[0].learners["1"].memory_bytes and samples[0].network == "node"
    stored = {path.name for path in (rig.store / "learner-1").iterdir()}
    assert stored == {"training-log.txt", ".log-copy-complete"}  # FfDL's layout, and nothing of ours

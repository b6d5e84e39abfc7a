"""Metrics of jobs on the cluster: lines of a log, and event files of the real writer; and what the learners used."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cluster.executions import let_go, wait_until
from tests.cluster.people import Person
from tests.unit.collectors.writers import write

REGEX = """\
evaluation_metrics:
  type: regex_extractor
  line_lookahead: 0
  groups:
    train:
      regex: 'step %{INT:step} loss %{FLOAT:loss}'
      meta: {}
      scalars: {loss: {type: FLOAT, value: $loss}}
      etimes: {iteration: {type: INT, value: $step}}
"""
LOSSES = "for i in 1 2 3 4 5; do echo step $i loss $LEARNER_ID.$((10 - i)); done; python3 -c 'sum(range(30000000))'; "
EVENTS = 'mkdir -p "$LOG_DIR/tb/test" && cp events.out.tfevents.1 "$LOG_DIR/tb/test/"; '
UNTIL = "until [ -e $JOB_STATE_DIR/go ]; do sleep 0.1; done"
"""Collectors have seconds when a learner has ended, which a busy machine may need to start them."""


@pytest.fixture(scope="module")
def losses(alice: Person) -> str:
    """A job of two learners that has ended."""
    return completed(alice, alice.start("losses", LOSSES + UNTIL, extra=REGEX, learners=2), 2)


@pytest.fixture(scope="module")
def events(alice: Person, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job with event files that has ended."""
    written: Path = write(tmp_path_factory.mktemp("tb"), [(step, {"accuracy": step / 10}) for step in range(1, 9)])
    model = alice.model("events", {"train.py": "pass\n"})
    alice.host_path(f"{model}/events.out.tfevents.1").write_bytes(written.read_bytes())
    manifest = alice.manifest("events", EVENTS + UNTIL, "evaluation_metrics: {type: tensorboard}\n")
    return completed(alice, alice.submit(manifest, model), 1)


def completed(alice: Person, job_id: str, curves: int) -> str:
    """The job, which ends when so many curves, below one line of headings, have been collected."""

    def has_curves() -> bool:
        return len(alice.run("ffdl", "metrics", job_id, check=False).stdout.splitlines()) - 1 == curves

    wait_until(has_curves, "the collectors")
    let_go(alice, job_id)
    shown = alice.finish(job_id)
    assert (shown["state"], shown["warnings"]) == ("COMPLETED", []), shown
    return job_id


def table(alice: Person, *arguments: str) -> list[list[str]]:
    return [line.split() for line in alice.run("ffdl", "metrics", *arguments).stdout.splitlines()]


@pytest.mark.full
def test_metrics_list_regex_and_tensorboard_curves_of_two_jobs(alice: Person, losses: str, events: str) -> None:
    rows = table(alice, losses, events)
    assert [row[:7] for row in rows[1:]] == [
        [events, "test/accuracy", "1", "8", "iteration", "8", "0.8"],
        [losses, "train/loss", "1", "5", "iteration", "5", "1.5"],
        [losses, "train/loss", "2", "5", "iteration", "5", "2.5"],
    ]


def test_metrics_usage_exports_memory_per_learner_and_network_per_node(alice: Person, losses: str) -> None:
    text = alice.run("ffdl", "metrics", "--usage", "--csv", "-", losses).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    of_learners = {row["learner"] for row in rows if row["name"] == "memory_bytes" and float(row["number"]) > 0}
    assert {"1", "2"} <= of_learners
    assert {row["name"] for row in rows if row["device"] in ("job", "node")} == {
        "network_received_bytes", "network_sent_bytes",
    }  # fmt: skip

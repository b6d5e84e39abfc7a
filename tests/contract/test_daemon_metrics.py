"""A job on this machine by a real daemon: what it measured, and the daemon's figures by all their ways."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ffdl_batch.domain.metrics.prometheus_text import CONTENT_TYPE
from tests.contract.daemon_rig import LIMIT_S, PLAIN, Site, until
from tests.fakes.s3_server import free_port

MANIFEST = """\
name: losses
memory: 100MB
cpus: 1
framework: {name: custom, version: any, command: bash train.sh GO}
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
TRAIN = "for i in 1 2 3 4 5; do echo step $i loss 0.$((10 - i)); done; until [ -e $1 ]; do sleep 0.1; done\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    more = {
        "FFDL_BACKEND": "local",
        "FFDL_METRICS_PORT": str(free_port()),
        "FFDL_METRICS_TEXTFILE": str(tmp_path / "ffdl.prom"),
        "HOME": str(tmp_path),
    }
    made = Site(tmp_path, more_environment=more)
    yield made
    made.close()


def scrape(port: str, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=LIMIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status != 200 or answer.headers["Content-Type"] == CONTENT_TYPE
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def rows_of(table: str) -> list[list[str]]:
    """The first two columns."""
    return [line.split()[:2] for line in table.splitlines()]


def completed(text: str) -> float:
    """How many jobs the figures say are COMPLETED."""
    samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
    return sum(one.value for one in samples if one.name == "ffdl_jobs" and one.labels["state"] == "COMPLETED")


def test_metrics_report_job_scalars_and_daemon_counters_on_every_channel(site: Site, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.sh").write_text(TRAIN)
    (tmp_path / "manifest.yml").write_text(MANIFEST.replace("GO", str(tmp_path / "go")))
    daemon = site.start(program=PLAIN)
    manifest, model = str(tmp_path / "manifest.yml"), str(tmp_path / "model")
    job_id = site.run("submit", "--parsable", manifest, model).strip().partition(";")[0]
    # What reads the log is a process of its own, and has ten seconds from the learner's end on.
    until(lambda: ["train/loss", "5"] in rows_of(site.try_to("metrics", job_id).stdout), "all to be read")
    until(lambda: "memory" in site.try_to("metrics", "--usage", job_id).stdout, "a sample")
    (tmp_path / "go").touch()
    site.run("wait", job_id)
    row = next(line.split() for line in site.run("metrics", job_id).splitlines() if line.startswith("train/loss"))
    assert row[:7] == ["train/loss", "5", "iteration", "5", "0.5", "0.5", "0.9"]
    assert "memory" in site.run("metrics", "--usage", job_id)
    assert "warning" not in site.run("show", job_id).lower()

    port, file = site.more_environment["FFDL_METRICS_PORT"], Path(site.more_environment["FFDL_METRICS_TEXTFILE"])
    assert completed(site.run("daemon", "metrics")) == 1
    status, text = scrape(port)
    assert status == 200 and completed(text) == 1 and job_id not in text
    assert scrape(port, "/api/v1/jobs")[0] == 404
    in_file = {family.name for family in text_string_to_metric_families(file.read_text())}
    assert in_file == {family.name for family in text_string_to_metric_families(text)}
    assert file.stat().st_mode & 0o777 == 0o644
    daemon.terminate()
    assert daemon.wait(LIMIT_S) == 0
    assert not file.exists()
    with pytest.raises(OSError):
        scrape(port)


def test_daemon_warns_and_keeps_running_when_metrics_port_is_taken(site: Site) -> None:
    with socket.create_server(("127.0.0.1", int(site.more_environment["FFDL_METRICS_PORT"]))):
        site.start(program=PLAIN)
        assert "so no metrics are served there" in until(lambda: "metrics_port" in site.log and site.log, "the warning")
        assert completed(site.run("daemon", "metrics")) == 0

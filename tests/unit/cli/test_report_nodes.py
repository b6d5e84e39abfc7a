"""``ffdl report nodes``: the same scores in each form."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ffdl_batch.cli.commands.report import nodes
from ffdl_batch.domain.incidents.node_score import NodeScore, NodesReport

N3 = NodeScore("n3", 6.25, {"node.gpu": 3, "node.failed": 1}, 1_800_000_000.0, 4, 1_800_086_400.0)
N2 = NodeScore("n2", 0.5, {"node.clock": 1}, 1_799_000_000.0, 1)


def told(monkeypatch: pytest.MonkeyPatch, report: NodesReport, *words: str) -> str:
    @contextmanager
    def opened(*, is_site: bool) -> Iterator[object]:
        assert not is_site
        yield SimpleNamespace(reports=SimpleNamespace(nodes=lambda: report))

    monkeypatch.setattr(nodes, "open_client", opened)
    result = CliRunner().invoke(nodes.nodes, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


REPORT = NodesReport(1_800_000_100.0, (N3, N2), 4.0)


def test_report_nodes_prints_table_with_exclusion_threshold_or_that_no_node_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = told(monkeypatch, REPORT)
    assert "Nodes with 4 or more are excluded." in text
    (line,) = [line for line in text.splitlines() if line.lstrip().startswith("n3")]
    assert "6.25" in line and "1 node.failed, 3 node.gpu" in line
    assert any(line.rstrip().endswith("-") for line in text.splitlines() if line.lstrip().startswith("n2"))
    assert "No node has failed a job." in told(monkeypatch, NodesReport(1.0))


def test_report_nodes_csv_has_row_per_node_and_incident_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(csv.DictReader(io.StringIO(told(monkeypatch, REPORT, "--format", "csv"))))
    kinds = [(row["node"], row["kind"], row["incidents"]) for row in rows]
    assert kinds == [("n3", "node.failed", "1"), ("n3", "node.gpu", "3"), ("n2", "node.clock", "1")]
    assert [row["excluded_until"] for row in rows] == ["1800086400.000", "1800086400.000", ""]


def test_report_nodes_writes_json_html_and_markdown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = json.loads(told(monkeypatch, REPORT, "--json"))["nodes"]
    assert [one["node"] for one in plain["nodes"]] == ["n3", "n2"]
    told(monkeypatch, REPORT, "--format", "html", "-o", str(tmp_path / "nodes.html"))
    assert "node.gpu" in (tmp_path / "nodes.html").read_text()
    assert "| n3" in told(monkeypatch, REPORT, "--format", "markdown")

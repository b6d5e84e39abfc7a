"""Records that the training itself writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ffdl_batch.collectors import emetrics
from ffdl_batch.collectors.emetrics import FILE, EmetricsSource
from ffdl_batch.collectors.source import Notes, State
from ffdl_batch.domain.metrics.records import Measure
from tests.unit.collectors.rig import NOW_S, Time, Told, drain, kept, spec_for, texts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of records, which a test writes."""
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / FILE


def source_of(path: Path, notes: Notes | None = None, state: State | None = None) -> EmetricsSource:
    return EmetricsSource(spec_for(path.parent), Time(), notes or Told().notes(), state or {})


def line(step: int, **meta: object) -> str:
    body = {"meta": meta, "grouplabel": "g", "etimes": {"i": {"value": step}}, "values": {"loss": {"value": step / 8}}}
    return json.dumps(body) + "\n"


def test_emetrics_source_reads_records_below_all_directories(tmp_path: Path) -> None:
    logs, more = tmp_path / "logs", tmp_path / "state"
    for path, text in (
        (logs / FILE, line(1, training_id="another", time="99", rindex="7")),
        (logs / "learner-2" / "x" / FILE, line(2)),
        (logs / "sub" / FILE, line(3, subid="own")),
        (more / FILE, line(4)),
        (logs / "other.txt", line(5)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    records = drain(EmetricsSource(spec_for(logs, more=[more]), Time(), Told().notes(), {}))
    subids = {record.etimes["i"].value: record.subid for record in records}
    assert subids == {"1": "", "2": "learner-2", "3": "own", "4": ""}
    assert {record.training_id for record in records} == {"training-1"}
    assert sorted({record.time_ms for record in records}) == [99, int(NOW_S * 1000)]
    assert records[0].values["loss"] == Measure("FLOAT", "0.125")


def test_emetrics_source_reads_deleted_file_to_end_and_releases_it(path: Path) -> None:
    path.write_text(line(1))
    source = source_of(path)
    assert texts(drain(source), "loss") == ["0.125"]
    with path.open("a") as file:
        file.write(line(2) + line(3).rstrip())
    path.unlink()
    assert texts(drain(source), "loss") == ["0.25", "0.375"]
    assert source.state() == {"files": {}}
    path.write_text(line(4))
    assert texts(drain(source), "loss") == ["0.5"]


def test_emetrics_source_reads_files_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emetrics, "MOST_RECORDS", 1)
    for name in ("a", "b"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / FILE).write_text(line(1, subid=name) * 2)
    source = EmetricsSource(spec_for(tmp_path / "logs"), Time(), Told().notes(), {})
    harvests = [source.poll(False) for _ in range(2)]
    assert [[record.subid for record in records] for records, _ in harvests] == [["a", "a"], ["b", "b"]]
    assert harvests[0].more


def test_emetrics_source_counts_wrong_lines_and_reports_them_once(path: Path) -> None:
    path.write_bytes(b"\n{\n" + line(1).encode() + b"\xff\xfe\n[]\n" + line(2).encode() + b"{" * 3_000_000 + b"\n")
    told = Told()
    notes = told.notes()
    assert texts(drain(source_of(path, notes)), "loss") == ["0.125", "0.25"]
    assert notes.counts["wrong_lines"] == 4
    assert told.kinds == ["wrong_lines", "long_lines"]
    assert str(path) in told.said[0][1] and "is not JSON" in told.said[0][1]


@pytest.mark.parametrize("at", ["9" * 400, "9" * 5000, "1e400", "-1e400", "NaN", "-1", str(10**15)])
@pytest.mark.parametrize("form", ["{}", '"{}"'])
def test_emetrics_source_rejects_time_out_of_range_and_reads_next_line(path: Path, at: str, form: str) -> None:
    path.write_text(line(1, time=0).replace('"time": 0', f'"time": {form.format(at)}') + line(2))
    told = Told()
    assert texts(drain(source_of(path, told.notes())), "loss") == ["0.25"]
    assert told.kinds == ["wrong_lines"]


@pytest.mark.parametrize(
    ("number", "found"),
    [("1e400", ["Infinity"]), (f'"{"9" * 400}"', ["9" * 400]), (f'"{"9" * 5000}"', ["9" * 5000]), ("9" * 400, [])],
)
def test_emetrics_source_reads_next_line_after_huge_value(path: Path, number: str, found: list[str]) -> None:
    path.write_text(line(1).replace("0.125", number) + line(2))
    assert texts(drain(source_of(path)), "loss") == [*found, "0.25"]


def test_emetrics_source_reads_torn_line_once_complete_after_restart(path: Path) -> None:
    path.write_text(line(1) + line(2)[:20])
    told = Told()
    source = source_of(path, told.notes())
    assert texts(drain(source), "loss") == ["0.125"]
    successor = source_of(path, told.notes(), kept(source))
    assert drain(successor) == []
    path.write_text(line(1) + line(2) + line(3).rstrip())
    assert texts(drain(successor), "loss") == ["0.25"]
    assert texts(drain(successor, final=True), "loss") == ["0.375"]
    assert told.said == []

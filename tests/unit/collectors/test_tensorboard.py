"""The TensorBoard collector on files of real writers; what it must find is what TensorBoard's own loader finds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ffdl_batch.collectors import tensorboard
from ffdl_batch.collectors.tensorboard import SETTLED_S, TensorBoardSource
from ffdl_batch.domain.metrics.records import Measure, MetricRecord, decode_record, encode_record
from tests.unit.collectors.rig import Time, Told, drain, kept, spec_for, texts
from tests.unit.collectors.writers import BEGAN_S, record, truth, write, write_x


class Run:
    """A log directory and a collector on it."""

    def __init__(self, base: Path) -> None:
        self.logs = base / "logs"
        self.logs.mkdir()
        self.time, self.told = Time(), Told()
        self.source = self.made({})

    def made(self, state: object) -> TensorBoardSource:
        assert isinstance(state, dict)
        return TensorBoardSource(spec_for(self.logs, "tensorboard"), self.time, self.told.notes(), state)

    def found(self, final: bool = False) -> list[MetricRecord]:
        return drain(self.source, final=final)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def scalars(records: list[MetricRecord]) -> list[tuple[int, str, np.float32]]:
    return [
        (int(found.etimes["iteration"].value), tag, np.float32(measure.value))
        for found in records
        for tag, measure in found.values.items()
    ]


def true_scalars(path: Path) -> list[tuple[int, str, np.float32]]:
    return [(step, tag, np.float32(value)) for _, step, tag, value in truth(path)]


def test_tensorboard_source_converts_step_to_ffdl_record(run: Run) -> None:
    write(run.logs / "tb" / "test", [(10, {"loss": 0.25, "acc": 0.5})])
    (found,) = run.found(final=True)
    etimes = {
        "iteration": Measure("INT", "10"), "timestamp": Measure("STRING", "2023-11-14T22:13:20.000000Z"),
        "wall_time": Measure("FLOAT", "1700000000.0"),
    }  # fmt: skip
    values = {"loss": Measure("FLOAT", "0.25"), "acc": Measure("FLOAT", "0.5")}
    assert found == MetricRecord("training-1", 1_700_000_000_000, 0, "", "test", etimes, values)


@pytest.mark.parametrize("new_style", [False, True])
def test_tensorboard_source_matches_tensorboard_loader_in_both_styles(run: Run, new_style: bool) -> None:
    values = [(step, {"loss": 1 / step, "acc/top 5": step / 7}) for step in range(1, 40)]
    path = write(run.logs, values, new_style=new_style)
    records = run.found(final=True)
    assert (len(records), len(truth(path))) == (39, 78)
    assert scalars(records) == true_scalars(path)


def test_tensorboard_source_merges_scalars_of_one_step(run: Run) -> None:
    values = [(step, tag, step / 3) for step in range(200) for tag in ("loss", "acc", "lr")]
    path = write_x(run.logs / "train", values)
    records = run.found(final=True)
    assert len(records) == 200
    assert scalars(records) == true_scalars(path)
    assert {found.group for found in records} == {"train"}


def test_tensorboard_source_derives_group_and_sub_run_from_directories(run: Run) -> None:
    for number, where in enumerate(("", "2/tb/train", "learner-3/val", "learner-x/val", "tb/4/val")):
        write(run.logs / where, [(number, {"a": 1})])
    found = {int(one.etimes["iteration"].value): (one.subid, one.group) for one in run.found(final=True)}
    assert found == {0: ("", "logs"), 1: ("2", "train"), 2: ("learner-3", "val"), 3: ("", "val"), 4: ("", "val")}


def test_tensorboard_source_merges_files_by_wall_time(run: Run) -> None:
    write(run.logs / "train", [(step, {"a": step}) for step in range(50)])
    write(run.logs / "val", [(step, {"b": step}) for step in range(50)], began_s=BEGAN_S + 0.5)
    write(run.logs / "val", [(step, {"b": step}) for step in range(5)], began_s=BEGAN_S + 20.25)
    records = run.found(final=True)
    times = [float(found.etimes["wall_time"].value) for found in records]
    assert len(times) == 105 and times == sorted(times)


def test_tensorboard_source_accepts_decreasing_steps_and_non_finite_values(run: Run) -> None:
    path = write(run.logs, [(5, {"a": float("nan")}), (6, {"a": float("inf")}), (2, {"a": 1}), (2, {"a": 2})])
    records = run.found(final=True)
    assert [found.etimes["iteration"].value for found in records] == ["5", "6", "2", "2"]
    assert texts(records, "a") == ["NaN", "Infinity", "1.0", "2.0"]
    assert len(truth(path)) == 4


@pytest.mark.parametrize("began_s", [1e300, 1e12, -5.0, float("inf"), float("nan")])
def test_tensorboard_source_makes_valid_record_of_event_whose_time_is_out_of_range(run: Run, began_s: float) -> None:
    write(run.logs, [(-(2**63), {"a": 1}), (2**63 - 1, {"a": 2})], began_s=began_s)
    records = run.found(final=True)
    assert texts(records, "a") == ["1.0", "2.0"]
    assert [decode_record(encode_record(record)) for record in records] == records


def test_tensorboard_source_starts_new_record_for_each_step(run: Run) -> None:
    write(run.logs, [(1, {"a": 1}), (2, {"b": 2}), (2, {"c": 3})])
    assert [list(found.values) for found in run.found(final=True)] == [["a"], ["b", "c"]]


def test_tensorboard_source_splits_step_with_many_scalars(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MOST_VALUES", 10)
    write_x(run.logs, [(1, f"tag{number}", number) for number in range(25)])
    assert [len(found.values) for found in run.found(final=True)] == [10, 10, 5]


def test_tensorboard_source_forgets_deleted_files_beyond_limit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MOST_FILES", 3)
    for number in range(9):
        path = write(run.logs / str(number), [(number, {"a": number})])
        assert texts(run.found(final=True), "a") == [f"{number}.0"]
        assert len(run.source.state()["files"]) <= 7
        path.unlink()


def test_tensorboard_source_does_not_wait_for_vanished_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run.logs, [(1, {"a": 1})])
    monkeypatch.setattr(tensorboard, "opened", lambda _file: None)
    assert run.source.poll(True) == ([], False)


def test_tensorboard_source_holds_last_step_until_file_has_settled(run: Run) -> None:
    write(run.logs, [(1, {"a": 1}), (2, {"a": 2})])
    assert texts(run.found(), "a") == ["1.0"]
    run.time.now_s += SETTLED_S - 0.5
    assert run.found() == []
    run.time.now_s += 1
    assert texts(run.found(), "a") == ["2.0"]
    assert run.found(final=True) == []


@pytest.mark.parametrize("new_style", [False, True])
def test_tensorboard_source_loses_nothing_with_torn_tail_and_restarts(
    run: Run, tmp_path: Path, new_style: bool
) -> None:
    values = [(step, {"a": step, "b": step / 2}) for step in range(1, 8)]
    whole = write(tmp_path / "elsewhere", values, new_style=new_style)
    data = whole.read_bytes()
    path = run.logs / whole.name
    records: list[MetricRecord] = []
    for end in range(0, len(data), 7):
        grow(path, data[:end])
        records += run.found()
        if end % 3 == 0:
            run.source = run.made(kept(run.source))
    grow(path, data)
    records += run.found(final=True)
    assert scalars(records) == true_scalars(whole)
    assert len(records) == 7
    assert run.told.said == []


def grow(path: Path, data: bytes) -> None:
    """What is new of `data` is appended."""
    with path.open("ab") as file:
        file.write(data[file.tell() :])


def test_tensorboard_source_returns_bounded_harvests(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MOST_RECORDS", 100)
    monkeypatch.setattr(tensorboard, "MOST_OPEN", 2)
    monkeypatch.setattr(tensorboard, "MOST_BYTES", 2000)
    for name in "abc":
        write(run.logs / name, [(step, {name: step}) for step in range(300)])
    first = run.source.poll(False)
    assert len(first.records) == 100 and first.more
    assert len(run.found(final=True)) == 800
    assert len(drain(run.made({}), final=True)) == 900


def test_tensorboard_source_stops_at_damaged_length_and_reports_it(run: Run) -> None:
    path = write(run.logs, [(1, {"a": 1})])
    good = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\0" * 40)
    assert run.found() == []
    assert run.told.said == []  # its bytes may still come
    assert texts(run.found(final=True), "a") == ["1.0"]
    assert run.told.kinds == ["damaged_files"]
    assert f"at byte {good}" in run.told.said[0][1]


def test_tensorboard_source_skips_damaged_event_and_reports_it(run: Run) -> None:
    path = write(run.logs, [(1, {"a": 1})])
    with path.open("ab") as file:
        file.write(record(b"\xff\xff\xff"))
        file.write(write(run.logs.parent / "x", [(2, {"a": 2})]).read_bytes())
    assert texts(run.found(final=True), "a") == ["1.0", "2.0"]
    assert run.told.kinds == ["damaged_events"]


def test_tensorboard_source_reads_replaced_file_from_start(run: Run) -> None:
    path = write(run.logs, [(step, {"a": step}) for step in range(5)])
    assert len(run.found(final=True)) == 5
    path.write_bytes(write(run.logs.parent / "x", [(9, {"a": 9})]).read_bytes())
    assert texts(run.found(final=True), "a") == ["9.0"]
    assert run.told.kinds == ["replaced"]


def test_tensorboard_source_changes_no_file_and_ignores_pipes_and_links(run: Run) -> None:
    path = write(run.logs / "tb", [(1, {"a": 1})])
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    os.mkfifo(run.logs / "tb" / "events.out.tfevents.pipe")
    (run.logs / "link").symlink_to(path.parent)
    assert len(run.found(final=True)) == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before

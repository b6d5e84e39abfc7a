"""The regex extractor, on logs as frameworks print them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.collectors import regex_extractor
from ffdl_batch.collectors.regex_extractor import RegexSource
from ffdl_batch.controller.logs.rotated_log import LogFiles
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.metrics.records import ExtractionGroup, Measure, MetricRecord, decode_record, encode_record
from tests.unit.collectors.rig import NOW_S, Time, Told, drain, kept, spec_for, texts

LOSS = ExtractionGroup(
    "train", r".*step %{INT:step}: loss=%{FLOAT:loss}",
    scalars={"loss": Measure("FLOAT", "$loss")}, etimes={"iteration": Measure("INT", "$step")},
)  # fmt: skip
PAIR = ExtractionGroup(
    "epoch", r"Epoch %{INT:epoch}.*?val_acc %{FLOAT:acc}", etimes={"epoch": Measure("INT", "$epoch")},
    scalars={"acc": Measure("FLOAT", "$acc"), "phase": Measure("STRING", "validation")},
)  # fmt: skip
NUMBER = {"n": Measure("INT", "$n")}


class Run:
    """A log directory and a collector on it."""

    def __init__(self, base: Path, *groups: ExtractionGroup, lookahead: int = 0) -> None:
        self.logs = base / "logs"
        self.logs.mkdir()
        self.time, self.told = Time(), Told()
        self.spec = spec_for(self.logs, "regex_extractor", groups, lookahead=lookahead)
        self.source = self.made({})

    def made(self, state: object) -> RegexSource:
        assert isinstance(state, dict)
        return RegexSource(self.spec, self.time, self.told.notes(), state)

    def write(self, text: str, name: str = "training-log.txt") -> None:
        path = self.logs / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def found(self, final: bool = False) -> list[MetricRecord]:
        return drain(self.source, final=final)


def test_regex_source_returns_record_per_matching_line(tmp_path: Path) -> None:
    run = Run(tmp_path, LOSS)
    run.write("loading\nI step 10: loss=0.25 (1.2 s)\nstep 20: loss=nan\n")
    first, second = run.found()
    etimes, values = {"iteration": Measure("INT", "10")}, {"loss": Measure("FLOAT", "0.25")}
    assert first == MetricRecord("training-1", int(NOW_S * 1000), 0, "", "train", etimes, values)
    assert second.values["loss"] == Measure("FLOAT", "nan")


def test_regex_source_reads_only_known_log_names_and_depth(tmp_path: Path) -> None:
    run = Run(tmp_path, LOSS)
    (run.logs / "2" / "deep").mkdir(parents=True)
    other = ("2/training-log.txt.bak", "my-training-log.txt", "2/deep/training-log.txt")
    for number, name in enumerate(("training-log.txt", "user_log.txt", "2/training-log.txt", *other)):
        run.write(f"step {number}: loss=0.{number}\n", name)
    found = sorted((record.values["loss"].value, record.subid) for record in run.found())
    assert found == [("0.0", ""), ("0.1", ""), ("0.2", "2")]


def test_regex_source_matches_across_window_and_empties_it(tmp_path: Path) -> None:
    run = Run(tmp_path, PAIR, lookahead=2)
    run.write("noise\nEpoch 1\nloss 3\nval_acc 0.5\nEpoch 2\na\nb\nval_acc 0.9\nEpoch 3\nval_acc 0.7\n")
    records = run.found(final=True)
    assert texts(records, "acc") == ["0.5", "0.7"]  # in the second epoch three lines follow the first
    assert texts(records, "phase") == ["validation", "validation"]


@pytest.mark.parametrize(
    ("lookahead", "first", "then", "found"),
    [
        (2, "one\nEpoch 1 val_acc 0.5\n", "two\nthree\n", ["0.5"]),
        (50, "one\nEpoch 1 val_acc 0.5\ntwo\nEpoch 2 val_acc 0.6", None, ["0.5", "0.6"]),
    ],
)
def test_regex_source_matches_only_at_window_start_or_at_end_of_log(
    tmp_path: Path, lookahead: int, first: str, then: str | None, found: list[str]
) -> None:
    run = Run(tmp_path, PAIR, lookahead=lookahead)
    run.write(first)
    assert run.found() == []
    run.write(then or "")
    assert texts(run.found(final=then is None), "acc") == found


def test_regex_source_uses_first_matching_group(tmp_path: Path) -> None:
    first = ExtractionGroup("first", "a %{INT:n}", scalars=NUMBER)
    second = ExtractionGroup("second", "[ab] %{INT:n}", scalars=NUMBER)
    run = Run(tmp_path, first, second)
    run.write("a 1\nb 2\na 3\n")
    found = [(record.group, record.values["n"].value) for record in run.found()]
    assert found == [("first", "1"), ("second", "2"), ("first", "3")]


def test_regex_source_compiles_with_multiline_and_dotall(tmp_path: Path) -> None:
    run = Run(tmp_path, ExtractionGroup("g", r".*^end %{INT:n}$", scalars=NUMBER), lookahead=3)
    run.write("begin\nend 5\n")
    assert texts(run.found(), "n") == ["5"]


def test_regex_source_converts_types_and_reports_wrong_ones_once(tmp_path: Path) -> None:
    types = {"int": "INT", "text": "STRING", "json": "JSONSTRING", "own": ""}
    scalars = {name: Measure(kind, "$v") for name, kind in types.items()} | {"more": Measure("FLOAT", "$more")}
    run = Run(tmp_path, ExtractionGroup("g", r"v (?P<v>\S+)(?: (?P<more>\S+))?", scalars=scalars))
    run.write('v 0x10\nv {"a":1} 2.5\nv word\n')
    first, second, _ = run.found()
    assert first.values == {
        "int": Measure("INT", "16"), "text": Measure("STRING", "0x10"), "json": Measure("JSONSTRING", "0x10"),
        "own": Measure("STRING", "0x10"),
    }  # fmt: skip
    assert second.values["json"] == Measure("JSONSTRING", '{"a":1}')
    assert second.values["more"] == Measure("FLOAT", "2.5")
    assert run.told.kinds == ["type:g:int"]


def test_regex_source_takes_time_and_sub_run_from_match(tmp_path: Path) -> None:
    group = ExtractionGroup("g", r"(?P<at>\S+) (?P<who>\w+) %{INT:n}", time="$at", subid="$who", scalars=NUMBER)
    run = Run(tmp_path, group)
    run.write("2026-01-02T03:04:05.5Z w1 1\n1700000000 w2 2\n1700000000123 w3 3\nlater w4 4\nsoon w5 5\n")
    now_ms = int(NOW_S * 1000)
    times_ms = {"w1": 1767323045500, "w2": 1700000000000, "w3": 1700000000123, "w4": now_ms, "w5": now_ms}
    assert {record.subid: record.time_ms for record in run.found()} == times_ms
    assert run.told.kinds == ["time:g"]


@pytest.mark.parametrize(
    "at",
    [f"1{'0' * 400}", "9" * 5000, f"{'9' * 400}.5", "1e400", str(10**17), "inf", "9999-12-31T23:59:59Z",
     "0001-01-01T00:00+14:00", "1960-01-01T00:00:00Z", f"0101 {'9' * 400}:00:00"],
)  # fmt: skip
def test_regex_source_replaces_time_out_of_range_by_time_of_reading(tmp_path: Path, at: str) -> None:
    run = Run(tmp_path, ExtractionGroup("g", r"at (?P<at>.+), n %{INT:n}", time="$at", scalars=NUMBER))
    run.write(f"at {at}, n 1\nat 1700000000, n 2\n")
    records = run.found()
    assert [record.time_ms for record in records] == [int(NOW_S * 1000), 1_700_000_000_000]
    assert run.told.kinds == ["time:g"]
    assert [decode_record(encode_record(record)) for record in records] == records


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "-" + "9" * 400, "1e400", "0x" + "f" * 5000])
def test_regex_source_keeps_following_records_after_huge_value(tmp_path: Path, number: str) -> None:
    scalars = {name: Measure(kind, "$v") for name, kind in {"int": "INT", "float": "FLOAT", "own": ""}.items()}
    run = Run(tmp_path, ExtractionGroup("g", r"v (?P<v>\S+)", scalars=scalars))
    run.write(f"v {number}\nv 5\n")
    records = run.found()
    assert texts(records[1:], "int") == ["5"]
    assert [decode_record(encode_record(record)) for record in records] == records


def test_regex_source_uses_time_at_which_line_was_printed(tmp_path: Path) -> None:
    """By the real writer's marks; also where the log was turned over, and after a restart of the collector."""
    run = Run(tmp_path, LOSS, lookahead=2)
    attempt = AttemptDir(str(tmp_path))
    logs, marks, files = attempt.learner_logs(1), attempt.marks(1), attempt.log_files(1)
    for directory in (Path(logs), Path(marks).parent):
        directory.mkdir()
    run.spec = replace(run.spec, log_dir=logs, marks=marks, log_files=files)
    run.source = run.made({})
    clock = [1_700_000_000.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffdl_batch.controller.logs.rotated_log.time.time", lambda: clock[0])
        log = LogFiles(attempt.path, 1, LogLimits(file_bytes=80, files=4, bytes_per_s=10**9))
        found: list[MetricRecord] = []
        for step in range(8):
            log.write(f"epoch {step}\nstep {step}: loss=0.{step}\n".encode())
            clock[0] += 10
            if step == 5:
                found += run.found()
                run.source = run.made(kept(run.source))
        found += run.found(final=True)
    assert [record.values["loss"].value for record in found] == [f"0.{step}" for step in range(8)]
    assert [record.time_ms for record in found] == [1_700_000_000_000 + 10_000 * step for step in range(8)]


def test_regex_source_uses_time_of_reading_without_marks(tmp_path: Path) -> None:
    run = Run(tmp_path, LOSS)
    run.spec = replace(run.spec, marks=str(tmp_path / "marks"), log_files=str(tmp_path / "files"))
    run.source = run.made({})
    for _ in range(2):
        run.write("step 1: loss=0.5\n")
        assert [record.time_ms for record in run.found()] == [int(NOW_S * 1000)]
        (tmp_path / "files").write_text("torn")


def test_regex_source_dates_stamp_without_year_in_past(tmp_path: Path) -> None:
    group = ExtractionGroup("g", r"%{GLOG_STAMP:at}", time="$at", scalars={"n": Measure("", "1")})
    run = Run(tmp_path, group)
    now = datetime.fromtimestamp(NOW_S)
    run.write(f"I{now:%m%d} 01:02:03.500000\nI1231 23:00:00\n")
    assert (now.month, now.day) < (12, 29)
    assert [record.time_ms for record in run.found()] == [
        int(datetime(now.year, now.month, now.day, 1, 2, 3, 500000).timestamp() * 1000),
        int(datetime(now.year - 1, 12, 31, 23).timestamp() * 1000),
    ]


def test_regex_source_keeps_window_across_restart(tmp_path: Path) -> None:
    run = Run(tmp_path, PAIR, LOSS, lookahead=3)
    run.write("step 1: loss=1\nEpoch 1\nhalf")
    assert texts(run.found(), "loss") == ["1"]
    run.source = run.made(kept(run.source))
    run.write(" a line\nval_acc 0.5\n")
    assert texts(run.found(), "acc") == ["0.5"]


REPORT = "ffdl-throughput: samples={} seconds=2\n"


def test_regex_source_makes_record_of_learners_report_without_any_group(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write(f"loading\n{REPORT.format(100)}ffdl-throughput: samples=x seconds=2\nffdl-scale: hold\nffdl-scale: +2")
    records = run.found()
    assert [(record.group, record.subid, record.time_ms) for record in records] == [("ffdl", "", int(NOW_S * 1000))] * 2
    assert (texts(records, "throughput"), texts(records, "scale")) == (["50.0"], ["0"])
    assert texts(run.found(final=True), "scale") == ["2"]


def test_regex_source_ends_window_at_learners_report(tmp_path: Path) -> None:
    run = Run(tmp_path, PAIR, LOSS, lookahead=3)
    run.write(f"Epoch 1\nstep 1: loss=1\n{REPORT.format(4)}val_acc 0.5\n")
    records = run.found()
    assert [list(record.values) for record in records] == [["loss"], ["throughput"]]
    assert run.found(final=True) == []


@pytest.mark.parametrize("every", [1, 2, 5])
def test_regex_source_finds_same_records_with_and_without_restarts(tmp_path: Path, every: int) -> None:
    run = Run(tmp_path, PAIR, LOSS, lookahead=3)
    records: list[MetricRecord] = []
    for number in range(40):
        parts = (f"step {number}: loss={number}\n", f"Epoch {number}\n", "noi", f"se\nval_acc {number}\r")
        run.write(parts[number % 4] + ("" if number % 4 == 2 else REPORT.format(number + 1)) * (number % 3 == 0))
        records += run.found()
        if number % every == 0:
            run.source = run.made(kept(run.source))
    records += run.found(final=True)
    assert records == drain(run.made({}), final=True)
    assert len(records) == 20 + 11 - 3  # three of the reports end a window


def test_regex_source_reads_logs_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_extractor, "MOST_RECORDS", 1)
    run = Run(tmp_path, LOSS)
    subids: list[str] = []
    for number in range(4):
        for name in ("1", "2", "3"):
            run.write(f"step {number}: loss=1\nstep {number}: loss=2\n", f"{name}/training-log.txt")
        harvest = run.source.poll(False)
        assert harvest.more and len(harvest.records) % 2 == 0
        subids += sorted({record.subid for record in harvest.records})
    assert subids == ["1", "2", "3", "1"]
    assert len(run.found()) == 24 - (2 + 4 + 6 + 6)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_regex_source_reads_deleted_log_to_end_and_closes_it(tmp_path: Path) -> None:
    run = Run(tmp_path, PAIR, lookahead=5)
    files = open_files()
    run.write("x\nEpoch 1 val_acc 0.5", "1/training-log.txt")
    assert run.found() == []
    assert open_files() == files + 1
    run.write("5\nEpoch 2 val_acc 0.6", "1/training-log.txt")
    (run.logs / "1" / "training-log.txt").unlink()
    assert texts(run.found(), "acc") == ["0.55", "0.6"]
    assert run.source.state()["files"] == {}
    assert open_files() == files


def test_regex_source_reports_too_many_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_extractor, "MOST_FILES", 2)
    run = Run(tmp_path, LOSS)
    for name in ("1", "2", "3"):
        run.write("step 1: loss=1\n", f"{name}/training-log.txt")
    assert [record.subid for record in run.found()] == ["1", "2"]
    assert run.told.kinds == ["many_files"]


def test_regex_source_discards_window_of_truncated_log(tmp_path: Path) -> None:
    run = Run(tmp_path, PAIR, LOSS, lookahead=3)
    run.write("Epoch 1\nlong line\n")
    assert run.found() == []
    (run.logs / "training-log.txt").write_text("val_acc 2\n")
    assert run.found(final=True) == []
    assert run.told.kinds == ["truncated", "unmatched"]


def test_regex_source_rereads_window_lines_after_match(tmp_path: Path) -> None:
    run = Run(tmp_path, PAIR, lookahead=2)
    run.write("noise\nEpoch 1 val_acc 0.5\nEpoch 2 val_acc 0.6\nEpoch 3\nval_acc 0.7\n")
    assert texts(run.found(), "acc") == ["0.5", "0.6", "0.7"]


def test_regex_source_disables_expression_that_backtracks_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regex_extractor, "LIMIT_S", 0.01)
    bad = ExtractionGroup("bad", r"(a+)+$b", scalars={"n": Measure("", "1")})
    run = Run(tmp_path, bad, LOSS)
    run.write(("a" * 60 + "\nstep 1: loss=1\n") * 8)
    assert texts(run.found(), "loss") == ["1"] * 8
    assert run.told.kinds == ["slow:bad", "off:bad"]
    assert run.source.state()["slowness"]["bad"] >= regex_extractor.SLOW_TOO_OFTEN


def test_regex_source_keeps_expression_that_is_rarely_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_extractor, "LIMIT_S", 0.01)
    monkeypatch.setattr(regex_extractor, "SLOW_COST", 10)
    monkeypatch.setattr(regex_extractor, "SLOW_TOO_OFTEN", 20)
    run = Run(tmp_path, ExtractionGroup("bad", r"(a+)+$b|n %{INT:n}", scalars=NUMBER))
    run.write(("a" * 60 + "\n" + "n 1\n" * 20) * 4)
    assert len(run.found()) == 80
    assert run.told.kinds == ["slow:bad"]


def test_limit_allows_many_short_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_extractor, "LIMIT_S", 0.01)
    pattern, text = re.compile("(?:a|b)*c"), "ab" * 200
    begun = time.process_time()
    with regex_extractor.watched():
        while time.process_time() - begun < 0.1:
            assert regex_extractor.match_in_time(pattern, text) is None


@pytest.fixture(autouse=True)
def no_timer_is_left() -> Iterator[None]:
    yield
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert re.match("a", "a") is not None


def test_regex_source_reports_groups_without_match_at_end(tmp_path: Path) -> None:
    run = Run(tmp_path, LOSS, PAIR, lookahead=1)
    run.write("loading\nstep 10: loss=0.25\nEpoch 1\n")
    assert len(run.found()) == 1
    again = kept(run.source)
    assert again["lines"] == 2, "the last line is read again"
    run.source = run.made(again)
    run.write("the end\n")
    assert run.found() == [] and run.told.said == []
    assert run.found(final=True) == []
    assert run.told.said == [("unmatched", "group epoch: its regex did not match any of 4 lines of the log")]


def test_regex_source_reports_no_group_that_matched_or_had_no_lines(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "step 10: loss=0.25\n")):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, LOSS)
        run.write(text)
        run.found(final=True)
        assert run.told.said == []
    run = Run(tmp_path, LOSS, PAIR)
    run.write("loss 7\n")
    run.found(final=True)
    assert run.told.said == [("unmatched", "groups train, epoch: their regexes did not match the only line of the log")]


def test_regex_source_reports_no_unmatched_group_for_second_learner(tmp_path: Path) -> None:
    run = Run(tmp_path, LOSS)
    run.write("hello\n")
    spec = replace(spec_for(run.logs, "regex_extractor", (LOSS,)), learner_id=2)
    drain(RegexSource(spec, run.time, run.told.notes(), {}), final=True)
    assert run.told.said == []

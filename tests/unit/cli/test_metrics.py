"""ffdl metrics: tables, curves, files of other programs, several jobs over each other."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ffdl_batch.cli.commands.metrics import metrics
from ffdl_batch.cli.options.output import check_written
from ffdl_batch.cli.render.charts import draw, short
from ffdl_batch.domain.metrics.records import Measure, MetricRecord, plain_record
from ffdl_batch.domain.metrics.series import Name, Series
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, Use, encode_sample
from tests import preloaded
from tests.unit.cli.programs import FFDL, environment, json_lines, run
from tests.unit.cli.test_report_rendering import Page
from tests.unit.client.fake_daemon import FakeDaemon, make_job

ONE, TWO = "training-000000001", "training-000000002"


def metric(step: int, loss: float, *, learner: int = 1, group: str = "train", attempt: int = 1) -> str:
    """One line as the daemon sends it."""
    values = {"loss": Measure("FLOAT", repr(loss)), "name": Measure("STRING", "a,b")}
    axes = {"iteration": Measure("INT", str(step))}
    record = MetricRecord("t", 1_800_000_000_000 + step, step, "", group, axes, values)
    return json.dumps({"learner": learner, "attempt": attempt, "record": plain_record(record)})


def sample(seconds: float, cpu_s: float) -> str:
    use = Use(cpu_s, 2_000_000_000, None, 0, int(seconds * 1_500_000))
    found = UsageSample(1_800_000_000 + seconds, "n1", use, {"1": use}, (GpuUse("0", 1, 0.5, 1 << 30, 1 << 34),))
    return json.dumps({"node": 0, "attempt": 1, "sample": json.loads(encode_sample(found))})


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def jobs(daemon: FakeDaemon) -> FakeDaemon:
    """Two jobs that measured a loss."""
    daemon.jobs = {job_id: make_job(job_id) for job_id in (ONE, TWO)}
    daemon.measured[f"{ONE}/metrics"] = [metric(step, 1 / (step + 1)) for step in range(100)]
    daemon.measured[f"{TWO}/metrics"] = [metric(step, 2.0) for step in range(10)]
    daemon.measured[f"{ONE}/usage"] = [sample(0, 10.0), sample(10, 45.0)]
    return daemon


def test_metrics_prints_table_with_curve_of_each_value(jobs: FakeDaemon) -> None:
    done = run(FFDL, "metrics", ONE, daemon=jobs)
    header, row = done.stdout.splitlines()
    assert header.split() == ["METRIC", "POINTS", "AT", "LAST", "LEAST", "MOST", "COURSE"]
    assert row.split()[:7] == ["train/loss", "100", "iteration", "99", "0.01", "0.01", "1"]
    assert row.split()[7].startswith("█▃▂▁") and done.stderr == ""


def test_metrics_adds_columns_for_several_jobs_and_learners(jobs: FakeDaemon) -> None:
    jobs.measured[f"{TWO}/metrics"].append(metric(10, float("nan"), learner=2))
    rows = [line.split() for line in run(FFDL, "metrics", ONE, TWO, daemon=jobs).stdout.splitlines()]
    assert rows[0][:3] == ["ID", "METRIC", "LEARNER"]
    assert [row[:4] for row in rows[1:]] == [
        [ONE, "train/loss", "1", "100"], [TWO, "train/loss", "1", "10"], [TWO, "train/loss", "2", "1"],
    ]  # fmt: skip
    assert rows[3][6:] == ["-", "-", "-"]


def test_metrics_only_selects_rows_by_pattern(jobs: FakeDaemon) -> None:
    jobs.measured[f"{ONE}/metrics"] += [metric(1, 0.5, group="val")]
    both = ["train/loss", "val/loss"]
    for pattern, labels in (("val/*", ["val/loss"]), ("loss", both), ("train/loss", ["train/loss"])):
        rows = run(FFDL, "metrics", "--only", pattern, ONE, daemon=jobs).stdout.splitlines()
        assert [row.split()[0] for row in rows[1:]] == labels


def test_metrics_only_applies_to_files_json_and_follow(jobs: FakeDaemon, tmp_path: Path) -> None:
    jobs.measured[f"{TWO}/metrics"] += [metric(1, 0.5, group="val")]
    files = ("--csv", "-", "--parquet", tmp_path / "a.parquet")
    rows = table(run(FFDL, "metrics", "--only", "val/*", *files, TWO, daemon=jobs).stdout)
    assert [(row["group"], row["name"]) for row in rows] == [("val", "loss"), ("val", "name")]
    assert len(pq.read_table(tmp_path / "a.parquet").to_pylist()) == 2
    documents = json_lines(run(FFDL, "metrics", "--json", "--only", "val/loss", TWO, daemon=jobs).stdout)
    assert [list(one["metrics"]["record"]["values"]) for one in documents] == [["loss"]]
    lines = run(FFDL, "metrics", "-f", "--only", "val/loss", TWO, daemon=jobs).stdout.splitlines()
    assert len(lines) == 1 and lines[0].endswith(" [1] val iteration=1 loss=0.5")


def test_metrics_usage_selects_one_learner(jobs: FakeDaemon) -> None:
    def of(learner: str, *options: str) -> str:
        return run(FFDL, "metrics", "--usage", "--learner", learner, *options, ONE, daemon=jobs).stdout

    rows = table(of("1", "--csv", "-"))
    assert {row["learner"] for row in rows} == {"1"} and {"used", "cpu_s"} <= {row["name"] for row in rows}
    assert [list(one["usage"]["sample"]["learners"]) for one in json_lines(of("1", "--json"))] == [["1"], ["1"]]
    assert "cpu[1]=3.5 cores" in of("1", "-f") and "[all]" not in of("1", "-f")
    assert of("2", "--json") == of("2", "-f") == of("2") == ""
    assert "of learner 2" in run(FFDL, "metrics", "--usage", "--learner", "2", ONE, daemon=jobs).stderr
    head, first, *_ = of("1").splitlines()
    assert first[head.index("LEARNER")] == "1"


def test_metrics_reports_axis_without_values_and_sends_learner_and_attempt(jobs: FakeDaemon) -> None:
    done = run(FFDL, "metrics", "--axis", "epoch", ONE, daemon=jobs)
    assert "train/loss" in done.stdout and "an axis epoch; the values are shown by time" in done.stderr
    assert run(FFDL, "metrics", "--axis", "iteration", ONE, daemon=jobs).stderr == ""
    run(FFDL, "metrics", "--learner", "2", "--attempt", "3", ONE, daemon=jobs)
    assert jobs.requests[-1] == f"GET /api/v1/jobs/{ONE}/metrics?learner=2&attempt=3"


def test_metrics_reports_missing_measurements_and_unknown_job(jobs: FakeDaemon) -> None:
    jobs.measured.clear()
    assert "evaluation_metrics in the manifest" in run(FFDL, "metrics", ONE, daemon=jobs).stderr
    assert "there are no samples yet" in run(FFDL, "metrics", "--usage", ONE, daemon=jobs).stderr
    assert run(FFDL, "metrics", "training-000000009", daemon=jobs).returncode == 66


@pytest.mark.parametrize(
    "options", [("--csv",), ("--parquet",), ("--png",), ("--html",), ("--usage", "--csv"), ("--usage", "--html")]
)
def test_metrics_without_values_fails_and_keeps_existing_file(
    jobs: FakeDaemon, tmp_path: Path, options: tuple[str, ...]
) -> None:
    jobs.measured.clear()
    path = tmp_path / "written.png"
    path.write_text("of yesterday")
    done = run(FFDL, "metrics", *options, path, ONE, daemon=jobs)
    assert (done.returncode, done.stdout, path.read_text()) == (1, "", "of yesterday")
    assert len(done.stderr.splitlines()) == 1 and "no file was written" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_metrics_json_prints_each_record_on_one_line_though_stream_breaks(jobs: FakeDaemon) -> None:
    jobs.break_log_after = 4
    documents = json_lines(run(FFDL, "metrics", "--json", TWO, daemon=jobs).stdout)
    assert len(documents) == 10 and documents[3]["metrics"]["learner"] == 1
    assert documents[3]["metrics"]["record"]["values"]["loss"] == {"type": "FLOAT", "value": "2.0"}
    assert documents[3]["metrics"]["record"]["meta"]["rindex"] == 3
    (first, _) = json_lines(run(FFDL, "metrics", "--usage", "--json", ONE, daemon=jobs).stdout)
    assert first["usage"]["sample"]["gpus"][0]["used"] == 0.5


def test_emetrics_pages_records_like_ffdl(jobs: FakeDaemon) -> None:
    def numbers(*options: str) -> list[int]:
        return [int(line.split()[0]) for line in run(FFDL, "emetrics", *options, TWO, daemon=jobs).stdout.splitlines()]

    first = run(FFDL, "emetrics", "--pagesize", "1", TWO, daemon=jobs).stdout
    assert first == "0 1800000000000 train [iteration=0] loss=2.0 name=a,b\n"
    assert numbers() == numbers("-f") == list(range(10))
    assert numbers("--pos", "3", "--pagesize", "2") == [3, 4]
    assert numbers("--pos", "-2") == [8, 9]
    assert numbers("--since", "1800000000006", "--pos", "3") == [6, 7, 8, 9]
    (document,) = json_lines(run(FFDL, "emetrics", "--json", "--pagesize", "1", TWO, daemon=jobs).stdout)
    assert document["record"]["grouplabel"] == "train" and document["learner"] == 1
    assert jobs.requests[-1] == f"GET /api/v1/jobs/{TWO}/metrics?learner=1"
    assert run(FFDL, "emetrics", "-f", "--pos", "-1", TWO, daemon=jobs).returncode == 2


def test_metrics_follow_prints_each_record_of_all_jobs(jobs: FakeDaemon) -> None:
    done = run(FFDL, "metrics", "-f", ONE, TWO, daemon=jobs)
    lines = done.stdout.splitlines()
    assert len(lines) == 110 and sum(TWO in line for line in lines) == 10
    assert any(line.endswith(f"{TWO} [1] train iteration=3 loss=2.0 name=a,b") for line in lines)
    lines = run(FFDL, "metrics", "-f", "--usage", ONE, daemon=jobs).stdout.splitlines()
    assert "cpu[all]=3.5 cores" in lines[-1] and "gpu 0[1]=50 %" in lines[-1]
    assert run(FFDL, "metrics", "-f", ONE, "training-000000009", daemon=jobs).returncode == 66


def test_metrics_writes_every_value_to_csv_and_parquet(jobs: FakeDaemon, tmp_path: Path) -> None:
    done = run(FFDL, "metrics", "--csv", "-", "--parquet", tmp_path / "a.parquet", TWO, daemon=jobs)
    rows = table(done.stdout)
    assert len(rows) == 20 and done.stderr == ""
    assert (rows[6]["name"], rows[6]["axis"], rows[6]["at"], rows[6]["number"]) == ("loss", "iteration", "3.0", "2.0")
    assert (rows[7]["name"], rows[7]["value"], rows[7]["number"]) == ("name", "a,b", "")
    columns = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert len(columns) == 20 and columns[6]["number"] == 2.0 and columns[7]["number"] is None
    assert columns[6]["time"] == 1_800_000_000.003 and columns[6]["job"] == TWO


def test_metrics_csv_marks_text_of_learner_that_a_spreadsheet_would_take_for_a_formula(jobs: FakeDaemon) -> None:
    jobs.measured[f"{TWO}/metrics"] = [metric(1, -0.5, group="=cmd|' /C calc'!A0")]
    rows = table(run(FFDL, "metrics", "--csv", "-", TWO, daemon=jobs).stdout)
    assert {row["group"] for row in rows} == {"'=cmd|' /C calc'!A0"}
    assert (rows[0]["value"], rows[0]["number"]) == ("-0.5", "-0.5")


def test_metrics_usage_prints_table_and_csv(jobs: FakeDaemon) -> None:
    lines = run(FFDL, "metrics", "--usage", ONE, daemon=jobs).stdout.splitlines()
    cells = {tuple(line.split("  ")[0:1]): line for line in lines}
    assert "3.5 cores" in cells[("node 0/cpu",)] and "2 GB" in cells[("node 0/memory",)]
    assert all("1.5 MB/s" in line for line in lines if "written" in line)
    rows = table(run(FFDL, "metrics", "--usage", "--csv", "-", ONE, daemon=jobs).stdout)
    used = [(row["number"], row["device"], row["learner"]) for row in rows if row["name"] == "used"]
    assert used == [("0.5", "0", "1")] * 2


@pytest.mark.parametrize("at", ["1e400", "1e300", "-1", "NaN"])
def test_metrics_usage_ignores_sample_whose_time_is_out_of_range(jobs: FakeDaemon, at: str) -> None:
    jobs.measured[f"{ONE}/usage"].insert(0, sample(20, 50.0).replace('"at": 1800000020', f'"at": {at}'))
    assert len(json_lines(run(FFDL, "metrics", "--usage", "--json", ONE, daemon=jobs).stdout)) == 2
    assert run(FFDL, "metrics", "--usage", "--follow", ONE, daemon=jobs).stdout.startswith("2027-")


def test_metrics_writes_self_contained_html_and_valid_png(jobs: FakeDaemon, tmp_path: Path) -> None:
    jobs.measured[f"{ONE}/metrics"] += [metric(1, 0.5, group="<script>$x$")]
    files = ("--html", tmp_path / "a.html", "--png", tmp_path / "a.png")
    done = run(FFDL, "metrics", *files, ONE, TWO, daemon=jobs, env={"MPLCONFIGDIR": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = Page((tmp_path / "a.html").read_text())
    tags = [tag for tag, _ in page.seen]
    assert tags.count("polyline") == 3 and "script" not in tags
    assert not {"src", "href", "xlink:href", "data"} & {name for _, attributes in page.seen for name in attributes}
    text = "".join(page.words)
    assert "http" not in (tmp_path / "a.html").read_text()
    assert "train/loss by iteration" in text and ONE in text and "<script>$x$/loss" in text
    picture = (tmp_path / "a.png").read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert picture.startswith(b"\x89PNG\r\n") and width > 500 and height > 500


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(("1e17",), marks=pytest.mark.full),
        pytest.param(("1e308",), marks=pytest.mark.full),
        ("-1e308", "1e308"),
        ("5e-324", "0"),
        pytest.param(("9" * 400, "1"), marks=pytest.mark.full),
        ("9" * 5000,),
        ("1.7976931348623157e308",),
    ],
)
def test_metrics_draws_values_at_limits_of_floats(jobs: FakeDaemon, tmp_path: Path, values: tuple[str, ...]) -> None:
    lines = [metric(step, 0.125).replace("0.125", value) for step, value in enumerate(values)]
    jobs.measured[f"{ONE}/metrics"] = [*lines, metric(8, 0.5, group="val")]
    for options in ((), ("--plot",), ("-f",)):
        done = run(FFDL, "metrics", *options, ONE, daemon=jobs)
        assert (done.returncode, done.stderr) == (0, "")
    files = ["--html", str(tmp_path / "a.html"), "--png", str(tmp_path / "a.png")]
    # In this process: matplotlib takes half a second to load.
    drawn = CliRunner().invoke(metrics, [*files, ONE], env=environment(jobs), catch_exceptions=False)
    assert (drawn.exit_code, drawn.stderr) == (0, "")
    assert "nan" not in (tmp_path / "a.html").read_text()


def test_metrics_plot_draws_curves_in_terminal(jobs: FakeDaemon) -> None:
    done = run(FFDL, "metrics", "--plot", ONE, TWO, daemon=jobs, env={"COLUMNS": "60", "LINES": "24"})
    lines = done.stdout.splitlines()
    assert lines[0] == "train/loss by iteration" and max(map(len, lines[1:-3])) <= 61
    assert "iteration 99" in done.stdout
    assert f"oo {ONE}: 0.01 (least 0.01, most 1)" in done.stdout and f"xx {TWO}: 2 (" in done.stdout
    assert any("xxx" in line for line in lines[:-4]) and any("oo" in line for line in lines[:-4])
    alone = run(FFDL, "metrics", "--plot", ONE, daemon=jobs, env={"COLUMNS": "60", "LINES": "24"}).stdout
    assert "-- train/loss: 0.01" in alone and any(mark in alone for mark in ("⠉⠉", "⠁", "⣀"))


@pytest.mark.parametrize(
    "options",
    [
        ("-f", "--csv", "x"), ("--json", "--plot"), ("--json", "--html", "x"), ("--learner", "0"),
        ("--usage", "--only", "cpu", "--json"), ("--usage", "--only", "cpu", "--csv", "-"),
    ],
)  # fmt: skip
def test_metrics_rejects_conflicting_options(jobs: FakeDaemon, options: tuple[str, ...]) -> None:
    assert run(FFDL, "metrics", *options, ONE, daemon=jobs).returncode == 2


@pytest.mark.parametrize("option", ["--csv", "--parquet", "--html", "--png"])
def test_metrics_rejects_unusable_output_path_before_asking_daemon(
    jobs: FakeDaemon, tmp_path: Path, option: str
) -> None:
    (tmp_path / "here.png").mkdir()
    for path, said in (
        (tmp_path / "none" / "x.png", f"there is no directory '{tmp_path / 'none'}'"),
        (tmp_path / "here.png", "is a directory"),
    ):
        done = run(FFDL, "metrics", option, path, ONE, daemon=jobs)
        assert done.returncode == 2 and f"Error: {option}: " in done.stderr and said in done.stderr
    assert jobs.requests == []


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("name", ["x", "in/x"])
@pytest.mark.parametrize("mode", [0, 0o444])
def test_check_written_rejects_path_in_directory_that_denies_access(tmp_path: Path, name: str, mode: int) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode)
    try:
        with pytest.raises(click.BadParameter, match=r"is not accessible: Permission denied|is not writable"):
            check_written(click.Context(metrics), metrics.params[0], str(shut / name))
    finally:
        shut.chmod(0o700)


def test_check_written_rejects_path_without_write_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(click.BadParameter, match=r"the directory .* is not writable"):
        check_written(click.Context(metrics), metrics.params[0], str(tmp_path / "x"))
    (tmp_path / "x").touch()
    with pytest.raises(click.BadParameter, match="is not writable"):
        check_written(click.Context(metrics), metrics.params[0], str(tmp_path / "x"))
    assert check_written(click.Context(metrics), metrics.params[0], "-") == "-"


def test_metrics_png_requires_png_suffix(jobs: FakeDaemon, tmp_path: Path) -> None:
    done = run(FFDL, "metrics", "--png", tmp_path / "a.txt", ONE, daemon=jobs)
    assert done.returncode == 2 and "does not end with .png" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--csv", "--parquet", "--html", "--png"])
def test_metrics_keeps_existing_file_if_job_is_unknown(jobs: FakeDaemon, tmp_path: Path, option: str) -> None:
    path = tmp_path / "a.png"
    path.write_text("of yesterday")
    assert run(FFDL, "metrics", option, path, "training-000000009", daemon=jobs).returncode == 66
    assert path.read_text() == "of yesterday" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("options", [(), ("--plot",), ("--json",), ("--csv", "-"), ("-f",)])
def test_metrics_names_job_left_out_of_comparison(jobs: FakeDaemon, options: tuple[str, ...]) -> None:
    jobs.measured[f"{TWO}/metrics"] = []
    done = run(FFDL, "metrics", *options, ONE, TWO, daemon=jobs)
    assert done.returncode == 0 and ONE not in done.stderr and done.stdout
    assert done.stderr == f"ffdl: {TWO} is left out: no values; for warnings: ffdl show {TWO}\n"
    jobs.measured[f"{TWO}/metrics"] = [metric(1, 0.5, group="val")]
    done = run(FFDL, "metrics", *options, "--only", "train/loss", ONE, TWO, daemon=jobs)
    assert done.stderr == f"ffdl: {TWO} is left out: no values with that name\n"


@pytest.mark.parametrize(
    "options", [(), ("--plot",), ("--json",), ("--csv", "-"), ("-f",), ("--usage",), ("--usage", "-f")]
)
def test_metrics_only_fails_and_lists_names_if_nothing_matches(jobs: FakeDaemon, options: tuple[str, ...]) -> None:
    jobs.measured[f"{ONE}/metrics"] += [metric(1, 0.5, group="val")]
    done = run(FFDL, "metrics", *options, "--only", "los", ONE, daemon=jobs)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no values match los; there are " in done.stderr
    names = "train/loss, val/loss" if options in ((), ("--plot",)) else "train/loss, train/name, val/loss, val/name"
    assert ("node 0/cpu" if "--usage" in options else f"there are {names}\n") in done.stderr


@pytest.mark.parametrize(
    ("option", "package", "extra"), [("--png", "matplotlib", "plots"), ("--parquet", "pyarrow", "parquet")]
)
def test_metrics_names_extra_of_missing_package(
    jobs: FakeDaemon, tmp_path: Path, option: str, package: str, extra: str
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from ffdl_batch.cli.main import main; main()"
    done = run((FFDL[0], "-c", code), "metrics", option, tmp_path / "x.png", ONE, daemon=jobs)
    assert done.returncode == 2 and f"ffdl-batch[{extra}]" in done.stderr


def test_draw_maps_curve_from_lower_left_to_upper_right() -> None:
    series = Series(Name("j", 1, "g", "v"))
    for step in range(11):
        series.add(step, step)
    lines = ["".join(text for text, _ in line) for line in draw([series], 30, 6)]
    assert len(lines) == 6 and lines[0].startswith("      10 │") and lines[0].rstrip()[-1] not in " │"
    assert lines[-2].startswith("       0 │") and lines[-2][10] != " " and lines[0][10] == " "
    alone = Series(Name("j", 1, "g", "v"))
    alone.add(1.0, 1.0)
    assert len(draw([alone], 30, 6)) == 6 and draw([Series(Name("j", 1, "g", "v"))], 30, 6) == []


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [(0.03125, "", "0.03125"), (1e-7, "", "1e-07"), (123456, "", "123456"), (1.5e9, "B", "1.5 GB"),
     (12, "B/s", "12 B/s"),
     (float("nan"), "", "-"), (float("inf"), "", "inf"), (2.5, "cores", "2.5 cores")],
)  # fmt: skip
def test_short_formats_number_with_unit(number: float, unit: str, text: str) -> None:
    assert short(number, unit) == text


@pytest.mark.parametrize(("option", "shown"), [((), "train/loss"), (("--plot",), "train/loss by iteration")])
def test_metrics_follow_redraws_terminal(jobs: FakeDaemon, option: tuple[str, ...], shown: str) -> None:
    ours, theirs = os.openpty()
    argv = [*FFDL, "metrics", "-f", *option, ONE, TWO]
    env = environment(jobs, {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"})
    with preloaded.Popen(argv, stdout=theirs, env=env) as process:
        os.close(theirs)
        text = b""
        while chunk := _read(ours):
            text += chunk
    os.close(ours)
    last = text.decode().rpartition("\x1b[H\x1b[J")[2]
    assert process.returncode == 0 and shown in last and ONE in last and TWO in last
    assert ("\x1b[36m" in last) == bool(option)  # curves have colours, a table has none


def _read(descriptor: int) -> bytes:
    """What a terminal shows; nothing once nobody writes to it any more."""
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the last writer is gone
        return b""

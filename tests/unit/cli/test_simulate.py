"""`ffdl simulate`: what it reads, prints and writes."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from ffdl_batch.cli.commands.simulate import MIXED, PATTERNS, SCALINGS
from ffdl_batch.elastic.policies import Policy
from ffdl_batch.elastic.synthetic import Pattern, Scaling
from tests.unit.cli.programs import FFDL, run
from tests.unit.elastic.recomputed import DATA, completion_times, rows_of

TABLES = ("--throughput", DATA / "throughput.csv", "--convergence", DATA / "convergence.csv")
SMALL = ("--synthetic", "bursty", "--gpus", "8", "--hours", "2")
JOBS = 40
SMALLEST = ("--smallest-batch",)


@pytest.fixture
def first_jobs(tmp_path: Path) -> Path:
    path = tmp_path / "arrivals.csv"
    lines = (DATA / "arrivals-1.csv").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: JOBS + 1]))
    return path


def test_choices_of_options_are_those_of_the_simulator() -> None:
    assert list(SCALINGS) == [*(one.value for one in Scaling), MIXED]
    assert list(PATTERNS) == [one.value for one in Pattern]


def test_simulate_prints_figures_of_all_policies() -> None:
    done = run(FFDL, "simulate", *SMALL)
    assert done.returncode == 0 and done.stderr == ""
    assert re.findall(r"^(\S+) +\d.*\d$", done.stdout, re.M) == list(Policy)
    assert "jobs on 8 GPUs, 4 per node; a decision every 60 s." in done.stdout


@pytest.mark.parametrize(
    ("policy", "batches"),
    [
        ("completion", ()),
        ("completion", SMALLEST),
        pytest.param("throughput", (), marks=pytest.mark.full),
        pytest.param("throughput", SMALLEST, marks=pytest.mark.full),
        ("fifo", ()),
        ("fifo", SMALLEST),
        pytest.param("baseline-random", (), marks=pytest.mark.full),
        pytest.param("baseline-random", SMALLEST, marks=pytest.mark.full),
    ],
)
def test_completion_times_recomputed_from_timeline_agree(
    first_jobs: Path, tmp_path: Path, policy: str, batches: tuple[str, ...]
) -> None:
    timeline = tmp_path / "timeline.csv"
    done = run(
        FFDL, "simulate", "--arrivals", first_jobs, *TABLES, "--policy", policy, "--timeline", timeline, "--json",
        *batches,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["simulation"]
    rows = rows_of(timeline)
    assert list(rows[0]) == ["time_s", "job", "gpus", "batch"]
    times = completion_times(rows, rows_of(first_jobs))
    assert times == {job: pytest.approx(took_s, abs=1e-6) for job, took_s in found["completion_s"].items()}
    assert len(times) == found["completed"] == JOBS and found["unfinished"] == 0
    assert found["mean_s"] == pytest.approx(sum(times.values()) / JOBS)


def test_smallest_batch_replaces_submitted_ones(first_jobs: Path) -> None:
    options = ("--arrivals", first_jobs, *TABLES, "--policy", "fifo", "--smallest-batch", "--timeline", "-")
    rows = list(csv.DictReader(run(FFDL, "simulate", *options).stdout.splitlines()))
    known: dict[str, set[int]] = {}
    for row in rows_of(DATA / "convergence.csv"):
        known.setdefault(row["model"], set()).add(int(row["batch"]))
    assert all(int(row["batch"]) == min(known[row["job"].rsplit("-", 1)[0]]) for row in rows if row["gpus"] != "0")


def test_equal_seeds_repeat_a_simulation_and_others_do_not() -> None:
    first, same, other = (
        run(FFDL, "simulate", *SMALL, "--policy", "completion", "--failures", "0.1", "--seed", seed, "--json").stdout
        for seed in ("1", "1", "2")
    )
    assert first == same != other
    assert json.loads(first)["simulation"][0]["failures"] > 0


def test_window_ends_simulation_and_counts_unfinished_jobs() -> None:
    options = ("--synthetic", "high", "--gpus", "8", "--hours", "2", "--policy", "fifo", "--window", "1h", "--json")
    [found] = json.loads(run(FFDL, "simulate", *options).stdout)["simulation"]
    assert found["unfinished"] > 0 and found["makespan_s"] <= 3600
    assert max(found["completion_s"].values()) <= 3600 and len(found["completion_s"]) == found["completed"]
    nothing = run(FFDL, "simulate", *options[:-3], "--window", "60", "--json").stdout
    assert json.loads(nothing)["simulation"][0]["mean_s"] is None


def test_window_counts_from_first_submission(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("job,submitted_s,model,gpus,batch\na,1000000,balanced,1,32\n")
    options = ("--arrivals", path, "--policy", "fifo", "--window", "30d", "--json")
    [found] = json.loads(run(FFDL, "simulate", *options).stdout)["simulation"]
    assert (found["completed"], found["unfinished"]) == (1, 0)


def test_window_that_ends_between_decisions_counts_nothing_after_it() -> None:
    options = ("--synthetic", "high", "--gpus", "8", "--hours", "4", "--policy", "throughput", "--interval", "3600")
    [found] = json.loads(run(FFDL, "simulate", *options, "--window", "61m", "--json").stdout)["simulation"]
    assert (found["completed"], found["makespan_s"]) == (0, None)
    [longer] = json.loads(run(FFDL, "simulate", *options, "--window", "62m", "--json").stdout)["simulation"]
    assert longer["completed"] == 1 and 3660 < longer["makespan_s"] <= 3720


@pytest.mark.parametrize("window", ["0s", "30s"])
def test_window_without_a_decision_is_refused(tmp_path: Path, window: str) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("job,submitted_s,model,gpus,batch\na,70,balanced,1,32\n")
    done = run(FFDL, "simulate", "--arrivals", path, "--policy", "fifo", "--window", window)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--window: the first decision is 50 s after the first submission; give a longer time" in done.stderr
    assert run(FFDL, "simulate", "--arrivals", path, "--policy", "fifo", "--window", "51").returncode == 0


def test_simulate_writes_png_and_self_contained_html(tmp_path: Path) -> None:
    files = ("--png", tmp_path / "a.png", "--html", tmp_path / "a.html")
    done = run(FFDL, "simulate", *SMALL, *files, "--policy", "fifo", "--policy", "completion", "--window", "3h")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg ") == 1 and "GPUs of each job: completion" in page and "<td" in page
    bar = page[page.rindex('<g id="matplotlib.axis_') :]
    assert re.findall(r">([^<>\s]+)</text>", bar) == ["1", "2", "4", "8", "GPUs"]
    assert not re.search(r"<script|(src|href)=\"(?!#)", page)


@pytest.mark.parametrize(
    ("package", "extra", "options"),
    [("numpy", "elastic", ()), ("scipy", "elastic", ()), ("matplotlib", "plots", ("--html",))],
)
def test_simulate_names_extra_of_missing_package(
    tmp_path: Path, package: str, extra: str, options: tuple[str, ...]
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from ffdl_batch.cli.main import main; main()"
    done = run((FFDL[0], "-c", code), "simulate", *SMALL, *options, *(tmp_path / "x.html" for _ in options))
    assert (done.returncode, done.stdout) == (2, "") and f"install ffdl-batch[{extra}]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_and_other_commands_import_no_numpy() -> None:
    code = (
        "import sys; sys.argv = ['ffdl', 'simulate', '--help']\n"
        "from ffdl_batch.cli.main import main\n"
        "try:\n    main()\nfinally:\n    print({'numpy', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    done = run((FFDL[0], "-c", code))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give either --arrivals FILE or --synthetic PATTERN"),
        (("--arrivals", DATA / "arrivals-1.csv", *SMALL), "give either --arrivals FILE or --synthetic PATTERN"),
        ((*SMALL, *TABLES[:2]), "--throughput and --convergence describe the same models; give both or neither"),
        ((*SMALL, *TABLES), "--throughput and --convergence cannot be combined with --synthetic"),
        ((*SMALL, "--json", "--timeline", "-"), "only one of --json, --timeline and --html can write to standard"),
        ((*SMALL, "--policy", "sjf"), "'sjf' is not one of"),
        (("--arrivals", "none.csv"), "'none.csv' does not exist"),
        ((*SMALL, "--png", "a.pdf"), "does not end with .png"),
        ((*SMALL, "--timeline", "none/t.csv"), "there is no directory 'none'"),
    ],
)
def test_simulate_refuses_wrong_usage(options: tuple[str | Path, ...], message: str) -> None:
    done = run(FFDL, "simulate", *options)
    assert (done.returncode, done.stdout) == (2, "") and message in re.sub(r"\s+", " ", done.stderr)


def test_damaged_table_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("job,submitted_s,model,gpus,batch\na,1,balanced,1,32\nb,2,balanced,one,32\n")
    done = run(FFDL, "simulate", "--arrivals", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ffdl: {path}, line 3: gpus is 'one'; write a whole number from 1 to 100000\n"


def test_unmeasured_jobs_use_synthetic_models(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text("job,submitted_s,model,gpus,batch\na,1,balanced,1,32\nb,2,compute-bound,4,128\n")
    done = run(FFDL, "simulate", "--arrivals", path, "--policy", "fifo", "--json")
    assert json.loads(done.stdout)["simulation"][0]["completed"] == 2


def test_table_of_a_cluster_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "cluster_log.csv"
    path.write_text(
        "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "1,u,4,16,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:10,2020-04-01 00:30:10,1800,10\n"
    )
    done = run(FFDL, "simulate", "--arrivals", path, "--policy", "fifo", "--scaling", "balanced", "--json")
    assert json.loads(done.stdout)["simulation"][0]["completion_s"] == {"1": pytest.approx(1830)}

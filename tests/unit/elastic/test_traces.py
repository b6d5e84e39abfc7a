"""Jobs from CSV: our own tables, those of clusters, and damaged ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.elastic.csv_tables import MOST_BYTES, DamagedTable
from ffdl_batch.elastic.measured import read_models, read_times
from ffdl_batch.elastic.synthetic import Scaling, SyntheticTimes, synthetic_models
from ffdl_batch.elastic.traces import is_trace, read_arrivals, read_trace

TIMES = SyntheticTimes(64, 4)
MODELS = synthetic_models()
HEADER = "job,submitted_s,model,gpus,batch\n"
HELIOS = (
    "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "7,u1,8,64,1,COMPLETED,2020-04-01 00:10:00,2020-04-01 00:20:00,2020-04-01 01:20:00,3600,600\n"
    "8,u1,0,64,1,COMPLETED,2020-04-01 00:11:00,2020-04-01 00:20:00,2020-04-01 01:20:00,3600,600\n"
    "9,u2,1,4,1,CANCELLED,2020-04-01 00:00:00,2020-04-01 00:20:00,2020-04-01 00:30:00,600.0,1200\n"
)
PHILLY = (
    "jobid,submitted_time,user,vc,status,gpus,start_time,end_time\n"
    "application_1,2017-10-07 01:10:00,a,v1,Pass,8,2017-10-07 01:20:00,2017-10-07 02:20:00\n"
    "application_2,2017-10-07 01:00:00,a,v2,Killed,1,2017-10-07 01:20:00,2017-10-07 01:30:00\n"
    "application_3,2017-10-07 01:01:00,a,v2,Killed,1,None,None\n"
)
USAGE = (
    "period_from,period_until,job,learners,gpus_per_learner,submitted,gpu_hours,account\n"
    "a,b,training-1,2,4,2026-11-30T01:10:00+01:00,8.000000,v1\n"
    "a,b,training-2,1,1,2026-11-30T00:00:00+00:00,0.166667,v2\n"
    "a,b,training-3,1,0,2026-11-30T00:00:00+00:00,0,v2\n"
)


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [HELIOS, PHILLY, USAGE], ids=["helios", "philly", "usage"])
def test_job_of_cluster_keeps_its_duration_on_its_gpus(tmp_path: Path, text: str) -> None:
    path = table(tmp_path, text)
    assert is_trace(path)
    small, large = read_trace(path, TIMES, 64, None, seed=3).arrivals
    assert (small.submitted_s, large.submitted_s) == (0, 600)
    assert (small.gpus, large.gpus, large.batch) == (1, 8, 256)
    for job, duration_s in ((small, 600), (large, 3600)):
        steps = job.work * MODELS[job.model].iterations[job.batch]
        assert steps * TIMES.step_s(job.model, job.gpus, job.batch) == pytest.approx(duration_s, rel=1e-5)


def test_scaling_of_recorded_jobs_is_chosen_or_by_seed(tmp_path: Path) -> None:
    lines = "".join(f"{number},4,2020-04-01 00:10:00,60\n" for number in range(30))
    path = table(tmp_path, f"job_id,gpu_num,submit_time,duration\n{lines}")
    mixed = [[job.model for job in read_trace(path, TIMES, 64, None, seed).arrivals] for seed in (1, 1, 2)]
    assert mixed[0] == mixed[1] != mixed[2] and set(mixed[0]) == {one.value for one in Scaling}
    chosen = read_trace(path, TIMES, 64, Scaling.BALANCED, 1).arrivals
    assert {job.model for job in chosen} == {"balanced"}


def test_own_arrivals_are_no_trace_and_name_models(tmp_path: Path) -> None:
    path = table(tmp_path, f"\ufeff{HEADER}a,5,balanced,4,128\n\nb,1.5,compute-bound,1,32\n")
    assert not is_trace(path)
    arrivals = read_arrivals(path, MODELS, 64)
    assert [(one.job, one.submitted_s, one.model, one.gpus, one.batch, one.work) for one in arrivals] == [
        ("a", 5, "balanced", 4, 128, 1),
        ("b", 1.5, "compute-bound", 1, 32, 1),
    ]


DAMAGED = {
    "": "has no header",
    "\n\n": "has no header",
    HEADER: "has a header and no lines below it",
    "job,submitted_s,model,gpus\na,1,balanced,1\n": "line 1: column 'batch' is missing; the header must have job,",
    "job,job,submitted_s,model,gpus,batch\n": "line 1: column 'job' occurs twice",
    f"{HEADER}a,1,balanced,1\n": "line 2: 4 cells, but the header has 5; complete or remove the line",
    f"{HEADER}a,1,balanced,1,32\na,1,balanced,1,32\n": "line 3: job 'a' occurs twice",
    f"{HEADER}a,1,other,1,32\n": "line 2: model 'other' is unknown; use balanced, communication-bound, compute-bound",
    f"{HEADER}a,1,balanced,1,33\n": "line 2: the iterations of model 'balanced' with batch 33 are unknown; use 32, 64",
    f"{HEADER}a,1,balanced,65,32\n": "line 2: job 'a' has 65 GPUs, but the pool has 64; simulate with --gpus 65",
    f"{HEADER}a,1,balanced,10001,32\n": "but the pool has 64; remove the line: a simulated pool has at most 10000 GPUs",
    f"{HEADER}a,1,balanced,0,32\n": "line 2: gpus is '0'; write a whole number from 1",
    f"{HEADER}a,1,balanced,²,32\n": "line 2: gpus is '²'",
    f"{HEADER}a,1,balanced,{'9' * 5000},32\n": "line 2: a cell has more than 1024 characters",
    f"{HEADER}a,-1,balanced,1,32\n": "line 2: submitted_s is '-1'; write a number from 0",
    f"{HEADER}a,nan,balanced,1,32\n": "line 2: submitted_s is 'nan'",
    f"{HEADER}a,1e999,balanced,1,32\n": "line 2: submitted_s is '1e999'",
    f"{HEADER},1,balanced,1,32\n": "line 2: job is empty; write a value",
    f'{HEADER}"a,1,balanced,1,32\n': "line 2: a quotation mark is not closed; close it",
    f"{HEADER}\x1b[2J,1,balanced,\x1b[2J,32\n": r"gpus is '\\x1b\[2J'",
}


@pytest.mark.parametrize(("text", "message"), DAMAGED.items(), ids=range(len(DAMAGED)))
def test_damaged_arrivals_are_refused_with_file_line_cause_and_cure(tmp_path: Path, text: str, message: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(DamagedTable, match=message) as caught:
        read_arrivals(path, MODELS, 64)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2020-04-01 00:10:00,2", "yesterday,2", "line 2: submit_time is 'yesterday'; write a time such as"),
        ("3600,600\n8", "-1,600\n8", "line 2: duration is '-1'"),
        ("7,u1,8", "7,u1,128", "line 2: job '7' has 128 GPUs, but the pool has 64"),
        ("9,u2", "7,u2", "line 4: job '7' occurs twice"),
    ],
)
def test_damaged_trace_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in HELIOS
    with pytest.raises(DamagedTable, match=message):
        read_trace(table(tmp_path, HELIOS.replace(old, new)), TIMES, 64, None, 1)


def test_trace_without_jobs_that_use_gpus_and_reversed_times_are_refused(tmp_path: Path) -> None:
    nothing = "".join(line for line in HELIOS.splitlines(keepends=True) if line[0] not in "79")
    with pytest.raises(DamagedTable, match="has no job with GPUs and a duration"):
        read_trace(table(tmp_path, nothing), TIMES, 64, None, 1)
    with pytest.raises(DamagedTable, match="line 2: end_time is before start_time"):
        read_trace(table(tmp_path, PHILLY.replace("2017-10-07 02:20", "2017-10-06 02:20")), TIMES, 64, None, 1)


@pytest.mark.parametrize("text", [HELIOS, PHILLY, USAGE])
def test_lines_of_trace_without_gpus_or_duration_are_counted(tmp_path: Path, text: str) -> None:
    trace = read_trace(table(tmp_path, text), TIMES, 64, None, 1)
    assert (len(trace.arrivals), trace.left_out) == (2, 1)


def test_open_quotation_mark_is_reported_at_its_line(tmp_path: Path) -> None:
    path = table(tmp_path, f'{HEADER}a,0,balanced,1,128\nb,0,"balanced,1,128\nc,0,balanced,1,128\n')
    with pytest.raises(DamagedTable, match="line 3: a quotation mark is not closed; close it"):
        read_arrivals(path, MODELS, 64)


@pytest.mark.parametrize(("separator", "shown"), [(";", "';'"), ("\t", "tabs")])
def test_other_separator_is_reported(tmp_path: Path, separator: str, shown: str) -> None:
    path = table(tmp_path, HEADER.replace(",", separator))
    with pytest.raises(DamagedTable, match=f"line 1: the cells are separated by {shown}; separate them by commas"):
        read_arrivals(path, MODELS, 64)


def test_model_missing_in_convergence_table_names_that_table(tmp_path: Path) -> None:
    path = table(tmp_path, f"{HEADER}a,0,bert,1,128\n")
    with pytest.raises(DamagedTable, match=r"line 2: model 'bert' is not in steps\.csv; add it there, or use balanced"):
        read_arrivals(path, MODELS, 64, Path("steps.csv"))


def test_binary_and_huge_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xff\xfe\x00job")
    with pytest.raises(DamagedTable, match="not UTF-8 text; save it as CSV in UTF-8"):
        read_arrivals(path, MODELS, 64)
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(DamagedTable, match="split the table"):
        read_arrivals(path, MODELS, 64)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedTable, match="is a pipe or device, but tables are read twice; write it to a file first"):
        is_trace(tmp_path / "pipe")


SPEEDS = "model,nodes,gpus,gpus_per_node,local_batch,step_s,sync_s\n"


@pytest.mark.parametrize(
    ("speeds", "steps", "message"),
    [
        ("m,2,1,1,8,0.5,0.1\n", "", "line 2: 1 GPU cannot be on 2 nodes; correct one of them"),
        ("m,1,1,1,8,0.5,0.6\n", "", "line 2: sync_s is 0.6, but the whole step takes only 0.5 s"),
        ("m,1,1,1,8,0,0\n", "", "line 2: step_s is '0'"),
        ("m,1,1.5,1,8,1,0\n", "", "line 2: gpus is '1.5'"),
        ("m,1,1,1,8,1,0\n", "other,8,100\n", "line 2: model 'other' has no step times; measure it"),
        ("m,1,1,1,8,1,0\n", "m,4,100\n", "line 2: batch 4 is smaller than 8, the smallest measured local_batch"),
        ("m,1,1,1,8,1,0\n", "m,8,100\nm,8,90\n", "line 3: batch 8 of model 'm' occurs twice"),
        ("m,1,1,1,8,1,0\n", "m,8,0\n", "line 2: iterations is '0'"),
    ],
)
def test_damaged_tables_of_models_are_refused(tmp_path: Path, speeds: str, steps: str, message: str) -> None:
    throughput, convergence = tmp_path / "throughput.csv", tmp_path / "convergence.csv"
    throughput.write_text(SPEEDS + speeds)
    convergence.write_text("model,batch,iterations\n" + steps)
    with pytest.raises(DamagedTable, match=message):
        read_models(convergence, read_times(throughput))

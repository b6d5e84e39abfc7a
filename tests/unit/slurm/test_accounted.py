"""What sacct says of starts of jobs."""

from __future__ import annotations

import pytest

from ffdl_batch.domain.job import Token
from ffdl_batch.domain.observation import NativeId
from ffdl_batch.ports.accounts import AccountedRun
from ffdl_slurm.accounted import parse_runs, parse_tres, runs_of
from ffdl_slurm.commands import sacct_runs_argv
from ffdl_slurm.parsers import Garbled

HEADER = "JobID|State|ElapsedRaw|AllocTRES|JobName\n"
GPU2 = "billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=1"


def runs(text: str, **attempts: str) -> dict[str, list[AccountedRun]]:
    wanted = {NativeId.parse(native.removeprefix("n")): Token(token) for native, token in attempts.items()}
    found = runs_of(parse_runs(HEADER + text), wanted, lambda name, task: f"{name}-of-{task}" if task else name)
    return {str(native): one for native, one in found.items()}


def test_sacct_run_parser_returns_one_run_per_start_of_requeued_job() -> None:
    text = f"7|REQUEUED|100|{GPU2}|training-a-1\n7|COMPLETED|50|{GPU2}|training-a-1\n"
    assert runs(text, n7="training-a-1")["7"] == [
        AccountedRun(100.0, 2.0, 4.0, is_over=False),
        AccountedRun(50.0, 2.0, 4.0, is_over=True),
    ]


def test_sacct_run_parser_ignores_job_of_other_name_with_same_id() -> None:
    text = f"7|COMPLETED|100|{GPU2}|somebody's\n7|COMPLETED|50|{GPU2}|training-a-1\n"
    assert [run.elapsed_s for run in runs(text, n7="training-a-1")["7"]] == [50.0]
    assert runs(f"7|COMPLETED|100|{GPU2}|somebody's\n", n7="training-a-1") == {}


def test_sacct_run_parser_identifies_array_task_by_task_table() -> None:
    text = f"7_3|COMPLETED|9|{GPU2}|array-a\n7_[4-9]|PENDING|0||array-a\n"
    assert [run.gpus for run in runs(text, n7_3="array-a-of-3")["7_3"]] == [2.0]


def test_sacct_run_parser_returns_no_run_for_job_that_never_started() -> None:
    assert runs("7|CANCELLED by 0|0||training-a-1\n", n7="training-a-1") == {"7": []}


def test_sacct_run_parser_returns_no_gpu_count_if_accounting_counts_no_gpus() -> None:
    (run,) = runs("7|COMPLETED|9|cpu=4,mem=1G|training-a-1\n", n7="training-a-1")["7"]
    assert run.gpus is None
    both = runs(f"7|COMPLETED|9|cpu=4|training-a-1\n8|COMPLETED|9|{GPU2}|x\n", n7="training-a-1")
    assert both["7"][0].gpus == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("cpu=2,mem=1.5G", {"cpu": 2.0, "mem": 1.5 * 1024**3}),
        ("gres/gpu:a=b=1,nonsense,x=y", {"gres/gpu:a=b": 1.0}),
    ],
)
def test_parse_tres_reads_amounts_and_ignores_unreadable_entries(text: str, found: dict[str, float]) -> None:
    assert parse_tres(text) == found


def test_sacct_run_parser_adds_gpus_listed_only_by_type() -> None:
    (record,) = parse_runs(HEADER + "7|COMPLETED|9|gres/gpu:a=2,gres/gpu:b=1|x\n")
    assert record.gpus == 3.0


GOOD = f"6|COMPLETED|50|{GPU2}|training-b-1\n"


@pytest.mark.parametrize(
    "row",
    [
        f"7|COMPLETED|soon|{GPU2}|training-a-1\n",
        f"7|COMPLETED|-5|{GPU2}|training-a-1\n",
        f"7|COMPLETED||{GPU2}|training-a-1\n",
        f"7|COMPLETED|{'9' * 5000}|{GPU2}|training-a-1\n",
        "7|COMPLETED|5|cpu=4,gres/gpu=N/A|training-a-1\n",
        "7|COMPL\n",
        f"7|REQUEUED|100|{GPU2}|training-a-1\n7|COMPLETED|soon|{GPU2}|training-a-1\n",
    ],
)
def test_sacct_run_parser_marks_only_attempt_of_malformed_row_unread(row: str) -> None:
    found = runs(row + GOOD, n6="training-b-1", n7="training-a-1")
    (odd,) = found.pop("7")
    assert odd.unread.startswith("sacct printed ") and (odd.elapsed_s, odd.gpus, odd.is_over) == (0.0, None, False)
    assert list(found) == ["6"] and not any(one.unread for one in found["6"])
    assert [record.native for record in parse_runs(HEADER + row + GOOD) if record.unread] == [NativeId("7")]


def test_sacct_run_parser_ignores_malformed_rows_of_other_job_with_same_id() -> None:
    text = f"7|COMPLETED|soon||somebody's\n7|COMPLETED|50|{GPU2}|training-a-1\n"
    assert [run.elapsed_s for run in runs(text, n7="training-a-1")["7"]] == [50.0]
    text = f"7|COMPLETED|9|{GPU2}|some\nbody|s|a|b|c|d\n7|COMPLETED|50|{GPU2}|training-a-1\n"
    assert [run.elapsed_s for run in runs(text, n7="training-a-1")["7"]] == [50.0]


@pytest.mark.parametrize(
    "row",
    [
        "7_[4-9%2]|PENDING|0||training-a-1\n",
        "7_[4,6,...|PENDING|0||training-a-1\n",
        f"9+1|COMPLETED|5|{GPU2}|x\n",
        "9|COMPLETED|5|energy=x,=,new:thing,cpu=2|x\n",
        f"9|NEVER_HEARD_OF|5|{GPU2}|x\n",
        f"9|COMPLETED|5|{GPU2}|\n",
    ],
)
def test_sacct_run_parser_accepts_unusual_rows(row: str) -> None:
    assert [run.elapsed_s for run in runs(row + GOOD, n6="training-b-1")["6"]] == [50.0]
    assert not [record for record in parse_runs(HEADER + row + GOOD) if record.unread]


@pytest.mark.parametrize("text", ["", "no header\n", HEADER + "7|COMPLETED|soon||x\n", HEADER + "7|COMPL"])
def test_sacct_run_parser_rejects_output_without_header_or_readable_row(text: str) -> None:
    with pytest.raises(Garbled):
        parse_runs(text)


def test_sacct_run_command_requests_duplicates_without_user_filter() -> None:
    argv = sacct_runs_argv(["7", "8"])
    assert "--duplicates" in argv
    assert "--jobs=7,8" in argv
    assert not any(word.startswith("--user") for word in argv)

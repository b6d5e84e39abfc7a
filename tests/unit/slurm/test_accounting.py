"""What sacct reports of starts of jobs, and a slurmdbd that does not answer: it is left alone for a while."""

from __future__ import annotations

import time

import pytest

from ffdl_batch.domain.backend_facts import AccountedRun, AccountedUse, AccountingOutage
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable, NotNow, SchedulerUnreachable
from ffdl_slurm.commands import sacct_runs_argv, sacct_uses_argv
from ffdl_slurm.gateways.accounting_circuit import LONGEST_PAUSE_S, WANTED_S, Accounting
from ffdl_slurm.observing.accounted_runs import parse_runs, parse_tres, parse_uses, runs_of, uncounted, uses_of
from ffdl_slurm.observing.parsers import Garbled


class Clock:
    """A clock that stands still until a test moves it."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounting(clock: Clock) -> Accounting:
    return Accounting(clock)


def fail(accounting: Accounting, why: str = "connection refused") -> None:
    with pytest.raises(NotNow, match=why), accounting.asking():
        raise SchedulerUnreachable(why)


def test_accounting_is_queried_again_by_one_caller_after_pause(clock: Clock, accounting: Accounting) -> None:
    fail(accounting)
    with pytest.raises(NotNow, match=r"the accounting does not answer: connection refused"), accounting.asking():
        raise AssertionError("it was asked")
    clock.at += LONGEST_PAUSE_S
    with accounting.asking(), pytest.raises(NotNow), accounting.asking():
        raise AssertionError("a second one asked while the first was waiting for its answer")
    for _ in range(2):
        with accounting.asking():
            pass


def test_accounting_records_no_outage_for_internal_error(accounting: Accounting) -> None:
    with pytest.raises(ZeroDivisionError), accounting.asking():
        raise ZeroDivisionError
    with accounting.asking():
        pass


def test_accounting_reports_outage_only_while_queries_are_recent(clock: Clock, accounting: Accounting) -> None:
    clock.at = 1000.0
    assert accounting.outage() is None
    fail(accounting)
    clock.at += 100
    assert accounting.outage() == AccountingOutage(100.0, "connection refused", 0.0)
    clock.at += WANTED_S
    assert accounting.outage() is None
    fail(accounting)
    told = accounting.outage()
    assert told is not None and told.for_s == 100 + WANTED_S and 0 < told.again_in_s <= LONGEST_PAUSE_S
    clock.at += 1
    with pytest.raises(AccountingUnreachable) as left_alone, accounting.asking():
        raise AssertionError("it was asked")
    assert left_alone.value.again_in_s == pytest.approx(told.again_in_s - 1)
    clock.at += LONGEST_PAUSE_S
    with accounting.asking():
        pass
    assert accounting.outage() is None


def test_accounting_logs_few_outage_warnings_and_one_recovery(
    clock: Clock, accounting: Accounting, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(240):  # four minutes, somebody asks each second
        clock.at += 1
        with pytest.raises(NotNow), accounting.asking():
            raise SchedulerUnreachable(f"sacct: error: slurm_persist_conn_open: ctl:6819 (pid {clock.at:.0f})")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "does not answer" in caplog.messages[0] and "has not answered for 1" in caplog.messages[1]
    clock.at += 2 * LONGEST_PAUSE_S
    fail(accounting, "no route to host")
    assert "no route to host" in caplog.messages[-1] and len(caplog.messages) == 3
    clock.at += 2 * LONGEST_PAUSE_S
    for _ in range(3):
        with accounting.asking():
            pass
    assert caplog.messages[3:] == ["the accounting answers again, after 479 s"]


HEADER = "JobID|State|ElapsedRaw|AllocTRES|JobName\n"
GPU2 = "billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=1"


PER_GPU = {"shard": 4.0}


def runs(text: str, **attempts: str) -> dict[str, list[AccountedRun]]:
    wanted = {NativeId.parse(native.removeprefix("n")): Token(token) for native, token in attempts.items()}
    records = parse_runs(HEADER + text)
    found = runs_of(records, wanted, lambda name, task: f"{name}-of-{task}" if task else name, PER_GPU)
    return {str(native): one for native, one in found.items()}


def test_sacct_run_parser_returns_one_run_per_start_of_requeued_job() -> None:
    text = f"7|REQUEUED|100|{GPU2}|training-a-1\n7|COMPLETED|50|{GPU2}|training-a-1\n"
    first, second = runs(text, n7="training-a-1")["7"]
    assert first == AccountedRun(100.0, 2.0, 4.0, is_over=False)
    assert second == AccountedRun(50.0, 2.0, 4.0, is_over=True)
    assert runs("7|CANCELLED by 0|0||training-a-1\n", n7="training-a-1") == {"7": []}


def test_sacct_run_parser_identifies_array_task_by_task_table() -> None:
    text = f"7_3|COMPLETED|9|{GPU2}|array-a\n7_[4-9]|PENDING|0||array-a\n"
    assert [run.gpus for run in runs(text, n7_3="array-a-of-3")["7_3"]] == [2.0]


@pytest.mark.parametrize(
    "other",
    [
        f"7|COMPLETED|100|{GPU2}|somebody's\n",
        "7|COMPLETED|soon||somebody's\n",
        f"7|COMPLETED|9|{GPU2}|some\nbody|s|a|b|c|d\n",
    ],
)
def test_sacct_run_parser_ignores_rows_of_other_job_with_same_id(other: str) -> None:
    text = f"{other}7|COMPLETED|50|{GPU2}|training-a-1\n"
    assert [run.elapsed_s for run in runs(text, n7="training-a-1")["7"]] == [50.0]
    assert runs(f"7|COMPLETED|100|{GPU2}|somebody's\n", n7="training-a-1") == {}


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


def test_sacct_run_parser_adds_gpus_listed_only_by_type_and_returns_no_count_if_accounting_counts_none() -> None:
    (record,) = parse_runs(HEADER + "7|COMPLETED|9|gres/gpu:a=2,gres/gpu:b=1|x\n")
    assert record.gpus({}) == 3.0
    (run,) = runs("7|COMPLETED|9|cpu=4,mem=1G|training-a-1\n", n7="training-a-1")["7"]
    assert run.gpus is None
    both = runs(f"7|COMPLETED|9|cpu=4|training-a-1\n8|COMPLETED|9|{GPU2}|x\n", n7="training-a-1")
    assert both["7"][0].gpus == 0.0


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=4,gres/shard=3", 0.75),
        ("cpu=4,gres/shard:a100=2,gres/shard=2", 0.5),
        ("cpu=4,gres/mps=50", None),  # no node tells how many are a GPU
        ("cpu=4", 0.0),
    ],
)
def test_sacct_run_parser_counts_shares_as_parts_of_a_gpu(tres: str, gpus: float | None) -> None:
    (run,) = runs(f"7|COMPLETED|9|{tres}|training-a-1\n{GOOD}", n7="training-a-1")["7"]
    assert run.gpus == gpus


GOOD = f"6|COMPLETED|50|{GPU2}|training-b-1\n"


@pytest.mark.parametrize(
    "row",
    [
        f"7|COMPLETED|soon|{GPU2}|training-a-1\n", f"7|COMPLETED|-5|{GPU2}|training-a-1\n",
        f"7|COMPLETED||{GPU2}|training-a-1\n", f"7|COMPLETED|{'9' * 5000}|{GPU2}|training-a-1\n",
        "7|COMPLETED|5|cpu=4,gres/gpu=N/A|training-a-1\n", "7|COMPL\n",
        f"7|REQUEUED|100|{GPU2}|training-a-1\n7|COMPLETED|soon|{GPU2}|training-a-1\n",
    ],
)  # fmt: skip
def test_sacct_run_parser_marks_only_attempt_of_malformed_row_unread(row: str) -> None:
    found = runs(row + GOOD, n6="training-b-1", n7="training-a-1")
    (odd,) = found.pop("7")
    assert odd.unread.startswith("sacct printed ") and (odd.elapsed_s, odd.gpus, odd.is_over) == (0.0, None, False)
    assert list(found) == ["6"] and not any(one.unread for one in found["6"])
    assert [record.native for record in parse_runs(HEADER + row + GOOD) if record.unread] == [NativeId("7")]


@pytest.mark.parametrize(
    "row",
    [
        "7_[4-9%2]|PENDING|0||training-a-1\n", "7_[4,6,...|PENDING|0||training-a-1\n", f"9+1|COMPLETED|5|{GPU2}|x\n",
        "9|COMPLETED|5|energy=x,=,new:thing,cpu=2|x\n", f"9|NEVER_HEARD_OF|5|{GPU2}|x\n", f"9|COMPLETED|5|{GPU2}|\n",
    ],
)  # fmt: skip
def test_sacct_run_parser_accepts_unusual_rows(row: str) -> None:
    assert [run.elapsed_s for run in runs(row + GOOD, n6="training-b-1")["6"]] == [50.0]
    assert not [record for record in parse_runs(HEADER + row + GOOD) if record.unread]


@pytest.mark.parametrize("text", ["", "no header\n", HEADER + "7|COMPLETED|soon||x\n", HEADER + "7|COMPL"])
def test_sacct_run_parser_rejects_output_without_header_or_readable_row(text: str) -> None:
    with pytest.raises(Garbled):
        parse_runs(text)


USE_HEADER = "User|Account|ElapsedRaw|AllocTRES|JobIDRaw|State\n"


def use_rows(*rows: str) -> str:
    """Rows of jobs that have ended, each with an id of its own."""
    return "".join(f"{row}|{number}|COMPLETED\n" for number, row in enumerate(rows, start=1))


def test_sacct_use_parser_adds_up_started_jobs_of_each_user_and_account() -> None:
    text = use_rows(f"ada|vis|100|{GPU2}", "bob|vis|7|cpu=1", "ada|vis|50|cpu=2,gres/gpu:a=1", f"ada|sp|3|{GPU2}")
    text += "ada|vis|0||9|PENDING\n"
    assert uses_of(parse_uses(USE_HEADER + text), {}) == [
        AccountedUse("ada", "sp", 1, 6.0, 12.0),
        AccountedUse("ada", "vis", 2, 250.0, 500.0),
        AccountedUse("bob", "vis", 1, 0.0, 7.0),
    ]
    assert parse_uses(USE_HEADER) == []


def test_sacct_uses_count_shares_as_parts_of_a_gpu() -> None:
    text = use_rows(f"ada|vis|100|{GPU2}", "ada|vis|100|cpu=1,gres/shard=1", "bob|vis|100|cpu=1,gres/mps=1")
    records = parse_uses(USE_HEADER + text)
    assert uncounted([one.tres_s for one in records], PER_GPU) == ["mps"]
    assert [one.gpu_s for one in uses_of(records, PER_GPU)] == [225.0, 0.0]
    assert [one.gpu_s for one in uses_of(records, {"mps": 100.0})] == [200.0, 1.0]


@pytest.mark.parametrize(
    "text",
    ["", f"ada|vis|5|{GPU2}|1|RUNNING\n", f"{USE_HEADER}ada|vis|soon|{GPU2}|1|RUNNING\n", f"{USE_HEADER}ada|vis|5\n",
     f"{USE_HEADER}ada|vis|5|{GPU2}|1|RUNNING|more\n", f"{USE_HEADER}ada|vis|5|{GPU2}|1|RUNNING"],
)  # fmt: skip
def test_sacct_use_parser_rejects_output_that_it_cannot_count(text: str) -> None:
    with pytest.raises(Garbled):
        parse_uses(text)


def test_sacct_use_command_names_period_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        argv = sacct_uses_argv(1793314800.0, 1793401200.9)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert {"--starttime=2026-10-30T00:00:00", "--endtime=2026-10-31T00:00:00", "--truncate", "--allusers"} <= {*argv}


def test_sacct_run_command_requests_duplicates_without_user_filter() -> None:
    argv = sacct_runs_argv(["7", "8"])
    assert {"--duplicates", "--jobs=7,8"} <= set(argv)
    assert not any(word.startswith("--user") for word in argv)


def test_resized_job_counts_as_one_job_and_requeued_one_once_for_each_run() -> None:
    rows = (
        f"ada|vis|9|{GPU2}|7|RESIZING\nada|vis|8|{GPU2}|7|RESIZING\nada|vis|36|{GPU2}|7|RUNNING\n"
        f"ada|vis|1|{GPU2}|8|NODE_FAIL\nada|vis|1|{GPU2}|8|CANCELLED by 0\nbob|vis|5|{GPU2}|9|RESIZING\n"
    )
    found = [(one.user, one.jobs, one.gpu_s) for one in uses_of(parse_uses(USE_HEADER + rows), {})]
    assert found == [("ada", 3, 110.0), ("bob", 1, 10.0)], "the other sizes of bob's job are of another day"


def test_sizes_of_job_that_gave_back_nodes_are_runs_of_it() -> None:
    """As sacct of 26.05 prints them."""
    rows = "7|RESIZING|9|cpu=3,gres/gpu=12,node=3|t\n7|COMPLETED|36|cpu=2,gres/gpu=8,node=2|t\n"
    runs = runs_of(parse_runs(HEADER + rows), {NativeId("7"): Token("t")}, lambda name, _task: name, PER_GPU)
    found = [(one.elapsed_s, one.gpus, one.is_over) for one in runs[NativeId("7")]]
    assert found == [(9.0, 12.0, True), (36.0, 8.0, True)]

"""What Slurm prints, and what is not an answer."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.observation import EndCause, NativeId, Phase
from ffdl_slurm.parsers import (
    Garbled,
    OddRows,
    count_nodes,
    parse_excluded,
    parse_exit,
    parse_gpus,
    parse_other_gres,
    parse_sacct,
    parse_squeue,
    parse_submission,
    parse_time,
    parse_version,
)
from ffdl_slurm.sinfo import parse_sinfo, parse_sinfo_rows

QUEUE = "JOBID|STATE|EXIT_CODE|RESTART_COUNT|SUBMIT_TIME|START_TIME|END_TIME|NODELIST|REASON|NAME\n"
ACCOUNT = "JobID|State|ExitCode|Submit|Start|End|NodeList|Reason|JobName\n"


def test_jobs_in_several_phases() -> None:
    records = parse_squeue(
        QUEUE
        + "12|PENDING|0:0|0|1700000000|1700009999|N/A||Resources|a|b\n"
        + "13|RUNNING|0:0|2|1700000000|1700000001|1700009999|n[1-2]|None|t\n"
        + "14|FAILED|9:0|0|1700000000|1700000001|1700000002|n1|NonZeroExitCode|t\n"
        + "15|FAILED|0:9|0|1700000000|1700000001|1700000002|n1|RaisedSignal:9(Killed)|t\n"
        + "16|TIMEOUT|0:0|0|1700000000|1700000001|1700000002|n1|TimeLimit|t\n"
    )
    waiting, running, failed, killed, late = (record.observation for record in records)
    assert records[0].name == "a|b"
    assert (waiting.phase, waiting.reason, waiting.started_at, waiting.ended_at) == (
        Phase.PENDING, "Resources", None, None)  # fmt: skip
    assert (running.phase, running.restarts, running.nodes, running.ended_at) == (Phase.RUNNING, 2, "n[1-2]", None)
    assert (failed.end, failed.exit_code, failed.exit_signal) == (EndCause.FAILURE, 9, None)
    assert (killed.end, killed.exit_code, killed.exit_signal) == (EndCause.FAILURE, None, 9)
    assert (late.end, late.exit_code, late.ended_at) == (EndCause.TIMEOUT, 0, 1700000002.0)


def test_banners_and_clusters_before_the_header_are_read_over() -> None:
    text = "Welcome | to | us\n12 jobs are fine\nCLUSTER: one\n" + QUEUE + "\nCLUSTER: two\n" + QUEUE
    assert parse_squeue(text + "7|RUNNING|0:0|0|1|1|1|n1|None|x\n")[0].job == "7"


@pytest.mark.parametrize(
    "text",
    ["", "garbage\n", "<html>502</html>", QUEUE + "half a li", QUEUE + "x|RUNNING|0:0|0|||||r|n\n", "7|RUNNING|n\n"],
)
def test_half_answers_are_no_answers(text: str) -> None:
    with pytest.raises(Garbled):
        parse_squeue(text)


@given(st.text(max_size=200))
def test_no_text_without_header_lists_nothing_quietly(text: str) -> None:
    with pytest.raises(Garbled):
        parse_squeue(text)


def test_an_odd_row_hides_no_other_and_is_no_whole_answer() -> None:
    good = "7|RUNNING|0:0|0|1|1|1|n1|None|x\n"
    for odd in ("8|RUNNING|0:0|0|1\n", "x|RUNNING|0:0|0|1|1|1|n1|None|x\n", "of a name with line breaks\n"):
        with pytest.raises(OddRows, match="1 row among 2 cannot be read") as raised:
            parse_squeue(QUEUE + odd + good)
        assert [record.job for record in raised.value.records] == ["7"]
    with pytest.raises(OddRows) as raised:
        parse_sacct(ACCOUNT + "9|COMPLETED|0:0||||n1|None|t\n10|COMPLETED\n")
    assert [record.job for record in raised.value.records] == ["9"]


def test_a_name_may_hold_what_python_takes_for_a_line_break() -> None:
    assert parse_squeue(QUEUE + "7|RUNNING|0:0|0|1|1|1|n1|None|a\x0cb\x85c\n")[0].name == "a\x0cb\x85c"


def test_a_job_that_is_called_like_a_title_is_a_job() -> None:
    (record,) = parse_squeue(QUEUE + "7|RUNNING|0:0|0|1|1|1|n1|None|JOBID|STATE\n")
    assert (record.job, record.name) == ("7", "JOBID|STATE")


def test_an_empty_listing_is_an_answer() -> None:
    assert parse_squeue(QUEUE) == []


def test_arrays() -> None:
    records = parse_squeue(
        QUEUE
        + "20_[1-3,7-9:2%4]|PENDING|0:0|0|1|1|1||Resources|x\n20_5|RUNNING|0:0|0|1|1|1|n1|None|x\n"
        + "30+1|RUNNING|0:0|0|1|1|1|n1|None|x\n"
    )
    waiting, running, hetero = records
    assert waiting.native_ids(["1", "2", "4", "7", "8", "9", "x"]) == [NativeId("20", n) for n in ("1", "2", "7", "9")]
    assert waiting.native_ids() == []
    assert running.native_ids(["1"]) == [NativeId("20", "5")]
    assert hetero.job == "30"


def test_accounting() -> None:
    text = ACCOUNT + "9|CANCELLED by 1000|0:15|2026-11-19T10:00:00|Unknown|2026-11-19T10:00:05|None assigned|None|t\n"
    record = parse_sacct(text)[0]
    seen = record.observation
    assert (record.job, seen.end, seen.exit_signal, seen.nodes, seen.started_at) == (
        "9", EndCause.CANCELLED, 15, "", None)  # fmt: skip
    assert seen.ended_at is not None and seen.submitted_at is not None
    assert seen.ended_at - seen.submitted_at == 5


def test_success_with_an_exit_code_is_a_failure() -> None:
    assert parse_sacct(ACCOUNT + "9|COMPLETED|1:0||||n1|None|t\n")[0].observation.end is EndCause.FAILURE


@pytest.mark.parametrize(("exit_code", "reason"), [("0:53", "RaisedSignal:53(Real-time_signal_19)"), ("0:53", "None")])
def test_an_output_file_that_cannot_be_opened_is_a_failed_launch(exit_code: str, reason: str) -> None:
    (record,) = parse_sacct(ACCOUNT + f"9|FAILED|{exit_code}||||n1|{reason}|t\n")
    assert record.observation.end is EndCause.LAUNCH_FAILED
    assert record.observation.reason == "the batch script's output file could not be opened; check --output"


@pytest.mark.parametrize(("state", "exit_code"), [("CANCELLED", "0:53"), ("FAILED", "0:9"), ("FAILED", "53:0")])
def test_other_ends_keep_their_cause_and_reason(state: str, exit_code: str) -> None:
    (record,) = parse_sacct(ACCOUNT + f"9|{state}|{exit_code}||||n1|said|t\n")
    assert record.observation.end is not EndCause.LAUNCH_FAILED
    assert record.observation.reason == "said"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:9", (0, 9)), ("3:0", (3, 0)), ("256", (1, 0)), ("9", (0, 9)), ("0", (0, 0)), ("", (None, None))],
)
def test_exit_codes(text: str, expected: tuple[int | None, int | None]) -> None:
    assert parse_exit(text) == expected


@pytest.mark.parametrize("text", ["Unknown", "None", "N/A", "", "(null)", "tomorrow"])
def test_no_time(text: str) -> None:
    assert parse_time(text) is None


def test_times() -> None:
    assert parse_time("1700000000") == 1700000000.0
    assert parse_time(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1700000000))) == 1700000000.0


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("123\n", "123"),
        ("123;cluster\n", "123"),
        ("*** welcome ***\n17 nodes are down\n123\n", "123"),
        ("123\n*** thank you ***\nyou have used 4 of 7 hours\n", "123"),
        ("*** welcome ***\n123\n*** thank you ***", "123"),
        ("\x1b[1mwelcome\x1b[0m \ufffd\ufffd\n123;cluster\n\ufffd\n", "123"),
        ("jobs before yours:\n42\n123\n", None),
        ("123\n123\n", "123"),
        ("Submitted batch job 123\n", None),
        ("", None),
        ("12 34\n", None),
        ("Welcome to the cluster\n4294967999\n", None),
        ("Welcome to the cluster\n4294967293\n", None),
        ("4294967292\n", "4294967292"),  # of the last cluster of a federation
        ("0\n", None),
        ("007\n", None),
        ("\u0661\u0662\n", None),
        ("20261122164512\n123\n", "123"),
    ],
)
def test_submissions(text: str, job: str | None) -> None:
    assert parse_submission(text) == job


def test_sites() -> None:
    nodes, partitions = parse_sinfo(
        "motd\nPARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\n"
        "main*|1-00:00:00|8|4000|gpu:a100:4(S:0-1),gpu:v100:2(S:0,1),shard:8|ffdl-network,avx|n[1-2]\n"
        "long|infinite|8|4000|gpu:a100:4(S:0-1),gpu:v100:2(S:0,1),shard:8|ffdl-network,avx|n[1-2]\n"
        "cpu|30:00|64+|256000+|(null)|(null)|c1\nempty|1:00:00|0|0|||\n"
    )
    assert [(p.name, p.is_default, p.max_time_s) for p in partitions] == [
        ("main", True, 86400), ("long", False, None), ("cpu", False, 1800), ("empty", False, 3600)]  # fmt: skip
    assert [dict(n.gres) for n in nodes] == [{"shard": 8}, {}]
    assert [(n.name, n.cpus, n.memory_bytes, dict(n.gpus), n.partitions, n.features) for n in nodes] == [
        ("n[1-2]", 8, 4000 * 1024**2, {"a100": 4, "v100": 2}, ("main", "long"), ("ffdl-network", "avx")),
        ("c1", 64, 256000 * 1024**2, {}, ("cpu",), ()),
    ]


def test_an_odd_row_of_nodes_hides_no_other_from_who_only_looks() -> None:
    header = "PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\n"
    good = "main*|infinite|8|4000|(null)|(null)|n1\n"
    for odd in ("main*|infinite|8|n2\n", "main*|infinite|many|4000|(null)|(null)|n2\n"):
        nodes, partitions, unread = parse_sinfo_rows(header + odd + good)
        assert ([one.name for one in nodes], [one.name for one in partitions], len(unread)) == (["n1"], ["main"], 1)
        for text, parse in ((header + odd + good, parse_sinfo), (header + odd, parse_sinfo_rows)):
            with pytest.raises(Garbled, match="sinfo printed"):
                parse(text)


@pytest.mark.parametrize(
    ("names", "count"),
    [("n1", 1), ("n[1-3]", 3), ("n[01-16,20],m1", 18), ("r[1-2]n[1-4]", 8), ("a,b[7]-ib,c[1,3]", 4), ("n[x-y]", 1)],
)
def test_nodes_of_a_list_are_counted(names: str, count: int) -> None:
    assert count_nodes(names) == count


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:2", {"": 2}),
        ("gpu", {"": 1}),
        ("gpu:a:1,gpu:a:2", {"a": 3}),
        ("gpu:0", {}),
        ("mps:100", {}),
        ("", {}),
        ("gpu:1g.10gb:7(S:0),gpu:3g.20gb", {"1g.10gb": 7, "3g.20gb": 1}),
    ],
)
def test_gres(text: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("gpu:a100:4(S:0-1),shard:a100:16(S:0),npu:2", {"shard:a100": 16, "npu": 2}),
        ("gpu:1g.10gb:7(S:0),mps:400,bandwidth:lustre:no_consume:4G", {"mps": 400, "bandwidth:lustre": 4 * 1024**3}),
        ("npu:910b:8,npu:310:0", {"npu:910b": 8}),
        ("(null)", {}),
    ],
)
def test_gres_beside_gpus(text: str, others: dict[str, int]) -> None:
    assert parse_other_gres(text) == others


def test_versions() -> None:
    assert parse_version("slurm 26.05.5\n") == "26.05.5"
    assert parse_version("slurm-wlm 20.11.4\n") == "20.11.4"
    assert parse_version("nothing") == ""


@pytest.mark.parametrize(("text", "nodes"), [("", ""), ("(null)", ""), ("n[1-2]", "n[1-2]"), ("n1,m|2", "n1,m|2")])
def test_excluded_nodes(text: str, nodes: str) -> None:
    assert parse_excluded(f"motd\nJOBID|EXC_NODES\n7|{text}\n") == nodes


def test_the_excluded_nodes_of_a_job_that_is_not_there() -> None:
    assert parse_excluded("JOBID|EXC_NODES\n") is None
    with pytest.raises(Garbled):
        parse_excluded("7|n1\n")


@pytest.mark.parametrize(
    ("state", "reason", "held"),
    [
        ("PENDING", "JobHoldMaxRequeue", True),
        ("REQUEUE_HOLD", "JobHoldMaxRequeue", True),
        ("REQUEUE_HOLD", "launch failed requeued held", True),
        ("PENDING", "(launch_failed_requeued_held)", True),
        ("PENDING", "user env retrieval failed requeued held", True),
        ("PENDING", "launch failure limit exceeded requeued held", True),
        ("PENDING", "JobHeldUser", False),
        ("PENDING", "JobHeldAdmin", False),
        ("REQUEUE_HOLD", "job requeued in held state", False),
        ("PENDING", "Dependency", False),
        ("RUNNING", "JobHoldMaxRequeue", False),
    ],
)
def test_jobs_that_slurm_will_never_start_again(state: str, reason: str, held: bool) -> None:
    seen = parse_squeue(QUEUE + f"7|{state}|0:0|6|1|1|1||{reason}|t\n")[0].observation
    assert (seen.held_for_good, seen.reason) == (held, reason)


@pytest.mark.parametrize(
    ("state", "reason", "nowhere"),
    [
        ("PENDING", "BadConstraints", True),
        ("PENDING", "(BadConstraints)", True),
        ("PENDING", "Resources", False),
        ("RUNNING", "BadConstraints", False),
    ],
)
def test_jobs_that_no_node_fits(state: str, reason: str, nowhere: bool) -> None:
    assert parse_squeue(QUEUE + f"7|{state}|0:0|6|1|1|1||{reason}|t\n")[0].observation.nowhere == nowhere

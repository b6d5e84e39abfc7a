"""What Slurm prints, what is not an answer, and the meaning of every state."""

from __future__ import annotations

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Phase
from ffdl_slurm.observing.job_states import COMPACT, STATES, UNKNOWN, interpret_state
from ffdl_slurm.observing.parsers import (
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
from ffdl_slurm.observing.sinfo import parse_sinfo

QUEUE = "JOBID|STATE|EXIT_CODE|RESTART_COUNT|SUBMIT_TIME|START_TIME|END_TIME|NODELIST|REASON|NAME\n"
ACCOUNT = "JobID|State|ExitCode|Submit|Start|End|NodeList|Reason|JobName\n"


def test_squeue_parser_reads_phases_end_causes_and_times() -> None:
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
    assert (waiting.phase, waiting.reason) == (Phase.PENDING, "Resources")
    assert (waiting.started_at, waiting.ended_at) == (None, None)
    assert (running.phase, running.restarts, running.nodes, running.ended_at) == (Phase.RUNNING, 2, "n[1-2]", None)
    assert (failed.end, failed.exit_code, failed.exit_signal) == (EndCause.FAILURE, 9, None)
    assert (killed.end, killed.exit_code, killed.exit_signal) == (EndCause.FAILURE, None, 9)
    assert (late.end, late.exit_code, late.ended_at) == (EndCause.TIMEOUT, 0, 1700000002.0)


def test_squeue_parser_skips_banners_and_cluster_lines_before_header() -> None:
    text = "Welcome | to | us\n12 jobs are fine\nCLUSTER: one\n" + QUEUE + "\nCLUSTER: two\n" + QUEUE
    assert parse_squeue(text + "7|RUNNING|0:0|0|1|1|1|n1|None|x\n")[0].job == "7"
    assert parse_squeue(QUEUE) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage\n",
        "<html>502</html>",
        QUEUE + "7",
        QUEUE + "7|RUNNING|0:0|0|1|1|1|n1|None|x",
        QUEUE + "x|RUNNING|0:0|0|||||r|n\n",
        "7|RUNNING|n\n",
    ],
)
def test_squeue_parser_rejects_truncated_or_foreign_output(text: str) -> None:
    with pytest.raises(Garbled):
        parse_squeue(text)


@given(st.text(max_size=200))
def test_squeue_parser_rejects_any_text_without_header(text: str) -> None:
    with pytest.raises(Garbled):
        parse_squeue(text)


def test_squeue_and_sacct_parsers_raise_odd_rows_with_readable_records() -> None:
    good = "7|RUNNING|0:0|0|1|1|1|n1|None|x\n"
    for odd in ("8|RUNNING|0:0|0|1\n", "x|RUNNING|0:0|0|1|1|1|n1|None|x\n", "Bye | all\n"):
        with pytest.raises(OddRows, match="1 row among 2 cannot be read") as raised:
            parse_squeue(QUEUE + odd + good)
        assert [record.job for record in raised.value.records] == ["7"]
    with pytest.raises(OddRows) as raised:
        parse_sacct(ACCOUNT + "9|COMPLETED|0:0||||n1|None|t\n10|COMPLETED\n")
    assert [record.job for record in raised.value.records] == ["9"]


@pytest.mark.parametrize("footer", ["*** Good bye ***\n", "Good bye", "\n-- \nmaintenance on Monday\n\n", "\x07\r\n"])
@pytest.mark.parametrize("row", ["", "7|{}\n"])
@pytest.mark.parametrize("banner", ["", "\x1b]0;login1\x07", "Welcome: "])
def test_squeue_and_sacct_parsers_ignore_banner_and_footer(banner: str, row: str, footer: str) -> None:
    expected = ["7"] if row else []
    for parse, header, fields in (
        (parse_squeue, QUEUE, "RUNNING|0:0|0|1|1|1|n1|None|x"),
        (parse_sacct, ACCOUNT, "RUNNING|0:0|1|1|1|n1|None|x"),
    ):
        assert [record.job for record in parse(banner + header + row.format(fields) + footer)] == expected


@pytest.mark.parametrize("name", ["a\x0cb\x85c", "JOBID|STATE"])
def test_squeue_parser_keeps_control_characters_in_job_name_and_reads_job_named_like_header(name: str) -> None:
    (record,) = parse_squeue(QUEUE + f"7|RUNNING|0:0|0|1|1|1|n1|None|{name}\n")
    assert (record.job, record.name) == ("7", name)


def test_squeue_parser_reads_array_ranges_and_heterogeneous_jobs() -> None:
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


def test_sacct_parser_reads_cancelled_job() -> None:
    text = ACCOUNT + "9|CANCELLED by 1000|0:15|2026-11-19T10:00:00|Unknown|2026-11-19T10:00:05|None assigned|None|t\n"
    (record,) = parse_sacct(text)
    seen = record.observation
    assert (record.job, seen.end, seen.exit_signal) == ("9", EndCause.CANCELLED, 15)
    assert (seen.nodes, seen.started_at) == ("", None)
    assert seen.ended_at is not None and seen.submitted_at is not None
    assert seen.ended_at - seen.submitted_at == 5


NOT_OPENED = "the batch script's output file could not be opened; check --output"


@pytest.mark.parametrize(
    ("state", "exit_code", "reason", "end", "said"),
    [
        ("FAILED", "0:53", "RaisedSignal:53(Real-time_signal_19)", EndCause.LAUNCH_FAILED, NOT_OPENED),
        ("FAILED", "0:53", "None", EndCause.LAUNCH_FAILED, NOT_OPENED),
        ("CANCELLED", "0:53", "said", EndCause.CANCELLED, "said"),
        ("FAILED", "0:9", "said", EndCause.FAILURE, "said"),
        ("FAILED", "53:0", "said", EndCause.FAILURE, "said"),
        ("COMPLETED", "1:0", "said", EndCause.FAILURE, "said"),
    ],
)
def test_sacct_parser_reads_signal_53_as_failed_launch_and_keeps_reason_of_other_failures(
    state: str, exit_code: str, reason: str, end: EndCause, said: str
) -> None:
    (record,) = parse_sacct(ACCOUNT + f"9|{state}|{exit_code}||||n1|{reason}|t\n")
    assert (record.observation.end, record.observation.reason) == (end, said)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:9", (0, 9)), ("3:0", (3, 0)), ("256", (1, 0)), ("9", (0, 9)), ("0", (0, 0)), ("", (None, None))],
)
def test_parse_exit_splits_exit_code_and_signal(text: str, expected: tuple[int | None, int | None]) -> None:
    assert parse_exit(text) == expected


@pytest.mark.parametrize("text", ["Unknown", "None", "N/A", "", "(null)", "tomorrow"])
def test_parse_time_returns_none_without_valid_epoch_or_local_iso_time(text: str) -> None:
    assert parse_time(text) is None
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
def test_parse_submission_finds_only_unambiguous_job_id(text: str, job: str | None) -> None:
    assert parse_submission(text) == job


def test_sinfo_parser_merges_partitions_and_node_shapes() -> None:
    nodes, partitions, _unread = parse_sinfo(
        "motd\nPARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\n"
        "main*|1-00:00:00|8|4000|gpu:a100:4(S:0-1),gpu:v100:2(S:0,1),shard:8|ffdl-network,avx|n[1-2]\n"
        "long|infinite|8|4000|gpu:a100:4(S:0-1),gpu:v100:2(S:0,1),shard:8|ffdl-network,avx|n[1-2]\n"
        "cpu|30:00|64+|256000+|(null)|(null)|c1\nempty|1:00:00|0|0|||\n"
    )
    limits = [("main", True, 86400), ("long", False, None), ("cpu", False, 1800), ("empty", False, 3600)]
    assert [(p.name, p.is_default, p.max_time_s) for p in partitions] == limits
    assert [dict(n.gres) for n in nodes] == [{"shard": 8}, {}]
    assert [(n.name, n.cpus, n.memory_bytes, dict(n.gpus), n.partitions, n.features) for n in nodes] == [
        ("n[1-2]", 8, 4000 * 1024**2, {"a100": 4, "v100": 2}, ("main", "long"), ("ffdl-network", "avx")),
        ("c1", 64, 256000 * 1024**2, {}, ("cpu",), ()),
    ]


def test_sinfo_parser_keeps_readable_rows_and_returns_the_others() -> None:
    header = "PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\n"
    good = "main*|infinite|8|4000|(null)|(null)|n1\n"
    for odd in ("main*|infinite|8|n2\n", "main*|infinite|many|4000|(null)|(null)|n2\n", "| a | b | c | d | e | f |\n"):
        nodes, partitions, unread = parse_sinfo(header + odd + good)
        assert ([one.name for one in nodes], [one.name for one in partitions], len(unread)) == (["n1"], ["main"], 1)
        with pytest.raises(Garbled, match="sinfo printed"):
            parse_sinfo(header + odd)


@pytest.mark.parametrize("footer", ["", "*** Good bye ***\n", "Good bye", "\nmaintenance on Monday\n\n"])
@pytest.mark.parametrize("banner", ["", "*** Welcome ***\n", "Last login: Monday\n\n"])
def test_sinfo_parser_ignores_banner_and_footer(banner: str, footer: str) -> None:
    header = "PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\n"
    found = parse_sinfo(f"{banner}{header}main*|infinite|8|4000|(null)|(null)|n1\n{footer}")
    assert ([one.name for one in found[0]], found[2]) == (["n1"], ())


def test_sinfo_parser_rejects_answer_that_breaks_off() -> None:
    with pytest.raises(Garbled, match="middle of a line"):
        parse_sinfo("PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\nmain*|infinite|8|40")


@pytest.mark.parametrize(
    ("names", "count"),
    [("n1", 1), ("n[1-3]", 3), ("n[01-16,20],m1", 18), ("r[1-2]n[1-4]", 8), ("a,b[7]-ib,c[1,3]", 4), ("n[x-y]", 1)],
)
def test_count_nodes_counts_nodes_of_host_list(names: str, count: int) -> None:
    assert count_nodes(names) == count


@pytest.mark.parametrize(
    ("text", "gpus", "others"),
    [
        ("gpu:2", {"": 2}, {}),
        ("gpu", {"": 1}, {}),
        ("gpu:a:1,gpu:a:2", {"a": 3}, {}),
        ("gpu:0", {}, {}),
        ("mps:100", {}, {"mps": 100}),
        ("", {}, {}),
        ("(null)", {}, {}),
        ("gpu:1g.10gb:7(S:0),gpu:3g.20gb", {"1g.10gb": 7, "3g.20gb": 1}, {}),
        ("gpu:a100:4(S:0-1),shard:a100:16(S:0),npu:2", {"a100": 4}, {"shard:a100": 16, "npu": 2}),
        ("gpu:1g.10gb:7(S:0),mps:400,bandwidth:lustre:no_consume:4G", {"1g.10gb": 7},
         {"mps": 400, "bandwidth:lustre": 4 * 1024**3}),
        ("npu:910b:8,npu:310:0", {}, {"npu:910b": 8}),
    ],
)  # fmt: skip
def test_gres_parsers_count_gpus_by_type_and_other_resources(
    text: str, gpus: dict[str, int], others: dict[str, int]
) -> None:
    assert (parse_gpus(text), parse_other_gres(text)) == (gpus, others)


@pytest.mark.parametrize(
    ("text", "version"), [("slurm 26.05.5\n", "26.05.5"), ("slurm-wlm 20.11.4\n", "20.11.4"), ("nothing", "")]
)
def test_parse_version_reads_slurm_release_or_returns_empty_text(text: str, version: str) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(("text", "nodes"), [("", ""), ("(null)", ""), ("n[1-2]", "n[1-2]"), ("n1,m|2", "n1,m|2")])
def test_parse_excluded_returns_node_list_between_banner_and_footer(text: str, nodes: str) -> None:
    assert parse_excluded(f"motd\nJOBID|EXC_NODES\n7|{text}\nGood bye") == nodes


def test_parse_excluded_returns_none_for_unknown_job_and_rejects_missing_header() -> None:
    assert parse_excluded("JOBID|EXC_NODES\nGood bye\n") is None
    with pytest.raises(Garbled):
        parse_excluded("7|n1\n")


@pytest.mark.parametrize(
    ("state", "reason", "held", "nowhere"),
    [
        ("PENDING", "JobHoldMaxRequeue", True, False),
        ("REQUEUE_HOLD", "JobHoldMaxRequeue", True, False),
        ("REQUEUE_HOLD", "launch failed requeued held", True, False),
        ("PENDING", "(launch_failed_requeued_held)", True, False),
        ("PENDING", "user env retrieval failed requeued held", True, False),
        ("PENDING", "launch failure limit exceeded requeued held", True, False),
        ("PENDING", "JobHeldUser", False, False),
        ("PENDING", "JobHeldAdmin", False, False),
        ("REQUEUE_HOLD", "job requeued in held state", False, False),
        ("PENDING", "Dependency", False, False),
        ("RUNNING", "JobHoldMaxRequeue", False, False),
        ("PENDING", "BadConstraints", False, True),
        ("PENDING", "(BadConstraints)", False, True),
        ("PENDING", "Resources", False, False),
        ("RUNNING", "BadConstraints", False, False),
    ],
)
def test_squeue_parser_marks_pending_job_held_for_good_or_with_bad_constraints_by_its_reason(
    state: str, reason: str, held: bool, nowhere: bool
) -> None:
    seen = parse_squeue(QUEUE + f"7|{state}|0:0|6|1|1|1||{reason}|t\n")[0].observation
    assert (seen.held_for_good, seen.nowhere, seen.reason) == (held, nowhere, reason)


WORDS = """PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE
OUT_OF_MEMORY LAUNCH_FAILED REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESIZING CONFIGURING COMPLETING STOPPED RECONFIG_FAIL
POWER_UP_NODE REVOKED REQUEUE_FED RESV_DEL_HOLD SIGNALING STAGE_OUT EXPEDITING"""


@pytest.mark.parametrize("word", WORDS.split())
def test_state_table_has_meaning_for_every_slurm_state(word: str) -> None:
    assert interpret_state(word) == (word, STATES[word])
    assert (STATES[word].phase is Phase.ENDED) == (STATES[word].end is not None)


@pytest.mark.parametrize(
    ("text", "word", "phase", "end"),
    [
        ("CANCELLED by 1000", "CANCELLED", Phase.ENDED, EndCause.CANCELLED),
        ("CANCELLED+", "CANCELLED", Phase.ENDED, EndCause.CANCELLED),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", Phase.ENDED, EndCause.OUT_OF_MEMORY),
        ("CG", "COMPLETING", Phase.COMPLETING, None),
        ("OOM", "OUT_OF_MEMORY", Phase.ENDED, EndCause.OUT_OF_MEMORY),
        ("FAILED,LAUNCH_FAILED", "LAUNCH_FAILED", Phase.ENDED, EndCause.LAUNCH_FAILED),
        ("COMPLETED,COMPLETING", "COMPLETING", Phase.COMPLETING, None),
        ("PENDING REQUEUED", "REQUEUED", Phase.PENDING, None),
        ("TIMEOUT", "TIMEOUT", Phase.ENDED, EndCause.TIMEOUT),
        ("running", "RUNNING", Phase.RUNNING, None),
    ],
)
def test_interpret_state_reads_compact_truncated_and_combined_states(
    text: str, word: str, phase: Phase, end: EndCause | None
) -> None:
    found, meaning = interpret_state(text)
    assert (found, meaning.phase, meaning.end) == (word, phase, end)


@pytest.mark.parametrize("text", ["", "?", "HIBERNATING", "COMPLETED,HIBERNATING", "CO+"])
def test_interpret_state_is_unknown_for_new_state_and_warns_once(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert interpret_state(text)[1] is UNKNOWN
    assert set(COMPACT.values()) <= set(STATES)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            interpret_state(f"BRAND_NEW_WORD_AFTER_{text}")
    assert sum("BRAND_NEW_WORD_AFTER_" in record.getMessage() for record in caplog.records) == 1

"""What sacct says of past jobs, and what sinfo says of the cluster, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.job.past_job import HistoryUnknown, PastJob, Period, Verdict, judge
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.plugins import open_history
from ffdl_slurm.convert.job_history import FIELDS, LINE, history_argv, parse_history
from ffdl_slurm.observing.parsers import Garbled

CAPTURED = (Path(__file__).parent / "sacct-history-26.05.txt").read_text()
"""Of a real cluster: a job with a GPU, an array, one by srun, two parts of a heterogeneous one, and a failed one."""
NAMES = (*FIELDS[:-1], LINE, FIELDS[-1])
PARTED = "\x1f"


def printed(*rows: dict[str, str]) -> str:
    """sacct's answer with these rows; what they leave out is a plain job's."""
    plain = {
        "JobID": "7", "User": "ann", "Account": "a", "Partition": "gpu,cpu", "State": "CANCELLED by 0", "NNodes": "2",
        "ElapsedRaw": "10", "TimelimitRaw": "Partition_Limit", "NCPUS": "8", "AllocTRES": "cpu=8,mem=2G",
        "Start": "1795479671", LINE: "sbatch x", "JobName": "x",
    }  # fmt: skip
    lines = [NAMES, *([{**plain, **row}[name] for name in NAMES] for row in rows)]
    return "".join(f"{PARTED.join(line)}\n" for line in lines)


def jobs_of(text: str) -> list[PastJob]:
    past = parse_history(text)
    assert past.unread == ()
    return list(past.jobs)


def test_sacct_history_parser_reads_captured_output() -> None:
    found = {job.id: job for job in parse_history(CAPTURED).jobs}
    assert list(found) == ["1", "2_0", "2_1", "4", "5+0", "5+1", "8"]
    first = found["1"]
    assert (first.name, first.gpus, first.gpu_type, first.cpus, first.memory_mib) == ("a b|c", 1, "v100", 1, 100)
    assert (first.limit_s, first.partition, first.account) == (525600 * 60, "main", "ffdl")
    assert found["2_1"].is_array and found["2_1"].limit_s == 300
    assert found["4"].interactive and not first.interactive
    assert found["5+1"].heterogeneous and found["5+1"].limit_s is None
    assert found["8"].state == "FAILED"


def test_sacct_history_parser_reads_banner_typed_gpus_and_multiline_commands() -> None:
    (job,) = jobs_of(f"Welcome to the cluster\n\n{printed({})}")
    assert (job.state, job.partition, job.limit_s, job.memory_mib) == ("CANCELLED", "gpu", None, 2048)
    assert job.started == "2026-11-24T00:21:11+00:00"
    tres = "cpu=8,mem=1.5T,gres/gpu:a100=2,gres/gpu:v100=1,gres/shard=3,license/abaqus=1"
    (job,) = jobs_of(printed({"AllocTRES": tres, LINE: "sbatch --wrap a\nb"}))
    assert (job.gpus, job.gpu_type, job.shares, job.licences) == (3, "", ("shard",), ("abaqus",))
    assert jobs_of(printed({"Start": "Unknown", "ElapsedRaw": "0"})) == []
    assert jobs_of(printed({}, {LINE: "/usr/bin/salloc -n1"}))[1].interactive


@pytest.mark.parametrize(
    "text",
    [
        "", "Slurm accounting storage is disabled\n", printed({})[:-9], printed({"NCPUS": "many"}),
        printed({"JobID": "x"}),
    ],
)  # fmt: skip
def test_sacct_history_parser_rejects_output_without_readable_row(text: str) -> None:
    with pytest.raises(Garbled):
        parse_history(text)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"NCPUS": "many"}, "'many' where the number for NCPUS stands"),
        ({"NNodes": ""}, "'' where the number for NNodes stands"),
        ({"ElapsedRaw": "-5"}, "'-5' where the number for ElapsedRaw stands"),
        ({"ElapsedRaw": "9" * 5000}, "where the number for ElapsedRaw stands"),
        ({"TimelimitRaw": "Unknown"}, "'Unknown' where the number for TimelimitRaw stands"),
        ({"AllocTRES": "cpu=8,mem=lots"}, "'lots' where an amount of memory stands"),
        ({"AllocTRES": "cpu=8,gres/gpu=N/A"}, "'N/A' where the number for gres/gpu stands"),
        ({"AllocTRES": ""}, "it ran for 10 s, and sacct does not say with what"),
        ({"Start": "9" * 30}, "where the time of its start stands"),
    ],
)
def test_sacct_history_parser_reports_malformed_row_and_keeps_others(row: dict[str, str], why: str) -> None:
    past = parse_history(printed({"JobID": "6"}, {"JobID": "7", **row}, {"JobID": "8"}))
    assert [job.id for job in past.jobs] == ["6", "8"]
    (unread,) = past.unread
    assert (unread.row, why in unread.why) == ("7", True)
    assert len(unread.why) < 300


@pytest.mark.parametrize(
    "row",
    [
        {"JobName": "a|b"}, {"JobName": "a\nb"}, {"JobName": "\na\n\n"}, {"JobName": "a\x1fb"}, {"JobName": ""},
        {"JobName": "\ufffd\x07"}, {LINE: "sbatch --wrap 'a\n7\n\nb'"}, {LINE: ""},
        {"AllocTRES": "cpu=8,energy=1,fs/disk=x,new:thing,bb/a=3G,=,mem=1G"}, {"Partition": ""},
        {"User": "", "Account": "", "State": ""}, {"JobID": "123_[4-9%2]"}, {"JobID": "123_[4,6,..."},
        {"JobID": "123+0"}, {"Start": "Unknown"}, {"Start": "2026-11-24T00:21:11"},
    ],
)  # fmt: skip
def test_sacct_history_parser_reads_unusual_field_values(row: dict[str, str]) -> None:
    first, job, last = jobs_of(printed({"JobID": "6"}, {"JobID": "7", **row}, {"JobID": "8"}))
    assert (first.id, job.id, last.id) == ("6", row.get("JobID", "7"), "8")
    assert job.name == row.get("JobName", "x")


def test_sacct_history_parser_reports_truncated_row_and_resumes_at_next_row() -> None:
    head, *rows = printed({"JobID": "6"}, {"JobID": "7"}, {"JobID": "8"}).splitlines()
    torn = PARTED.join(rows[1].split(PARTED)[:5])
    past = parse_history("\n".join([head, rows[0], torn, rows[2], ""]))
    assert [job.id for job in past.jobs] == ["6", "8"]
    assert [(one.row, "has 5 fields, not 13" in one.why) for one in past.unread] == [("7", True)]
    foreign = rows[1].replace("7", "x", 1)
    past = parse_history("\n".join([head, torn, foreign, rows[2], ""]))
    assert [job.id for job in past.jobs] == ["8"]
    assert [one.why for one in past.unread][1] == "'x' is not a job of Slurm"


def test_sacct_history_command_requests_own_jobs_or_account_of_all_users() -> None:
    own = history_argv(Period("2026-11-01"), with_line=False)
    assert f"--format={','.join(FIELDS)}" in own, "LINE is the only one that old releases lack"
    assert not [word for word in own if word.startswith(("--user", "--acc", "--allu"))]
    account = history_argv(Period("2026-11-01", account="vision"), with_line=True)
    assert f"--format={','.join((*FIELDS[:-1], LINE, FIELDS[-1]))}" in account
    assert account[-2:] == ["--allusers", "--accounts=vision"]


def test_slurm_history_returns_partitions_with_default_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(
        "#!/bin/sh\ncat <<'X'\nPARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST\n"
        "cpu|infinite|64|128000|(null)|(null)|c[1-9]\n"
        "gpu*|2:00:00|8|4000|gpu:a100:4|(null)|n[1-2]\nX\n"
    )
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    history = open_history("slurm", {})
    gpu, cpu = history.places()
    assert (gpu.name, gpu.limit_s, gpu.gpu_types) == ("gpu", 7200, frozenset({"a100"}))
    assert gpu.node_groups is not None and gpu.node_groups[0].nodes == 2
    (job,) = jobs_of(printed({"NNodes": "9", "NCPUS": "9"}))
    assert (judge(job, gpu).verdict, judge(job, cpu).verdict) == (Verdict.NOT, Verdict.RUNS)


def test_open_history_rejects_unknown_setting_and_unknown_backend() -> None:
    with pytest.raises(InvalidRequest, match="unknown key 'nonsense'"):
        open_history("slurm", {"nonsense": 1})
    with pytest.raises(HistoryUnknown, match="keeps no history"):
        open_history("pbs", {})

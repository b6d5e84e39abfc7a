"""The listing of all users' jobs: whose a row is, what is left out, and whether the hub's account sees all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ffdl_batch.domain.scheduler_errors import SchedulerMissing
from ffdl_slurm import commands
from ffdl_slurm.doctor.hub_account import explain_blindness
from ffdl_slurm.gateways.command_runner import CommandResult
from ffdl_slurm.observing.parsers import Garbled, parse_squeue
from ffdl_slurm.observing.shared_rows import MAX_ROW_CHARS, read_shared, split_by_user

HEADER = "USER|JOBID|STATE|EXIT_CODE|RESTART_COUNT|SUBMIT_TIME|START_TIME|END_TIME|NODELIST|REASON\n"
ROW = "12|RUNNING|0:0|1|1700000000|1700000001|1700009999|n[1-2]|None"
WAITING = "13_4|PENDING|0|0|1700000000|N/A|N/A||Priority"


def split(text: str) -> dict[int, list[str]]:
    return split_by_user(text.splitlines(keepends=True))


def test_question_about_all_users_prints_no_text_that_users_write() -> None:
    argv = commands.shared_squeue_argv()
    assert "--me" not in argv and "--array" in argv
    assert not {"name", "comment", "command", "workdir", "account"} & {
        field.lower() for field in commands.SHARED_FIELDS
    }
    assert commands.SHARED_FIELDS[1:] == commands.QUEUE_FIELDS


@pytest.mark.parametrize("title", ["USER", "UID", "\x1b[0mUSER"])
def test_rows_are_separated_by_uid_and_read_as_rows_of_own_squeue(title: str) -> None:
    header = HEADER.replace("USER", title)
    found = split(f"Welcome|to us\n{header}1001|{ROW}\n1002|{WAITING}\n1001|{WAITING}\n")
    assert found == {1001: [ROW, WAITING], 1002: [WAITING]}
    own = parse_squeue(f"{HEADER.removeprefix('USER|').rstrip()}|NAME\n{ROW}|training-1\n{WAITING}|chunk\n")
    assert [replace(one, observation=replace(one.observation, name="")) for one in own] == read_shared(found[1001])


@pytest.mark.parametrize(
    "line",
    [
        ROW,
        f"x|{ROW}",
        f"1001|{ROW}|1002",
        f"--1|{ROW}",
        f"1001 |{ROW}",
        "1001",
        "",
        f"1001|{'1' * MAX_ROW_CHARS}|{ROW}",
    ],
)
def test_rows_that_cannot_be_read_are_left_out(line: str) -> None:
    assert split(f"{HEADER}{line}\n1002|{ROW}\n") == {1002: [ROW]}


def test_large_uid_is_read_as_squeue_prints_it() -> None:
    assert split(f"{HEADER}-2|{ROW}\n3000000000|{WAITING}\n") == {2**32 - 2: [ROW], 3_000_000_000: [WAITING]}


@pytest.mark.parametrize("row", ["x|RUNNING|0:0|0|1|1|1|n1|None", "12|RUNNING", "", "|||||||||||"])
def test_daemon_leaves_out_rows_of_hub_that_cannot_be_read(row: str) -> None:
    assert [record.job for record in read_shared([row, ROW])] == ["12"]


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error\n", f"1001|{ROW}\n", f"{HEADER}1001|{ROW}", HEADER.rstrip()]
)
def test_output_without_header_or_end_is_no_listing(text: str) -> None:
    with pytest.raises(Garbled):
        split(text)


def runner(config: str, level: str | None = "") -> object:
    def run(argv: Sequence[str], _: float) -> CommandResult:
        if argv[0] == "sacctmgr" and level is None:
            raise SchedulerMissing("sacctmgr cannot be run")
        return CommandResult(tuple(argv), 0, config if argv[0] == "scontrol" else f"{level}\n", "")

    return run


@pytest.mark.parametrize(
    ("config", "level", "user", "is_blind"),
    [
        ("PrivateData             = none\n", "", "ffdl", False),
        ("PrivateData             = usage,users\n", "", "ffdl", False),
        ("", "", "ffdl", False),
        ("PrivateData             = jobs,usage\n", "Operator", "ffdl", False),
        ("PrivateData             = accounts,jobs\n", "Administrator", "ffdl", False),
        ("PrivateData             = jobs\n", "None", "ffdl", True),
        ("PrivateData             = jobs\n", "", "ffdl", True),
        ("PrivateData             = jobs\n", None, "ffdl", True),
        ("PrivateData             = jobs\nSlurmUser               = slurm(64030)\n", "", "slurm", False),
        ("PrivateData             = jobs\nSlurmUser               = slurm(64030)\n", "", "ffdl", True),
    ],
)
def test_account_needs_admin_level_if_jobs_are_private(
    config: str, level: str | None, user: str, is_blind: bool
) -> None:
    found = explain_blindness(runner(config, level), 1.0, user)  # type: ignore[arg-type]
    assert ("sacctmgr modify user ffdl set AdminLevel=Operator" in found) == is_blind

"""What sbatch said, read by whoever comes later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffdl_batch.domain.jobdir import AttemptDir
from ffdl_slurm import replies
from ffdl_slurm.replies import begin_reply, disown_reply, open_replies, read_replies, recover_reply


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    (tmp_path / "submit").mkdir()
    return AttemptDir(str(tmp_path))


def submit(attempt: AttemptDir, said: str, *, failed: bool = False) -> str:
    """One sbatch that says `said`; what its starter reads of it."""
    with open_replies(attempt) as files:
        before = begin_reply(files)
        with (Path(attempt.submit) / "reply").open("a") as reply:
            reply.write(said)
        end = os.fstat(files[0]).st_size
        out, _ = read_replies(attempt, before)
        if failed:
            disown_reply(attempt, files, end)
    return out


def test_submit_reply_contains_own_output_and_recovery_reads_all_ids(attempt: AttemptDir) -> None:
    assert recover_reply(attempt) == set()
    assert submit(attempt, "*** welcome ***\n101\n") == "*** welcome ***\n101\n"
    assert submit(attempt, "102;cluster\n*** thanks ***\n") == "102;cluster\n*** thanks ***\n"
    assert recover_reply(attempt) == {"101", "102"}


def test_submit_reply_cut_off_is_not_joined_with_next_reply(attempt: AttemptDir) -> None:
    submit(attempt, "10")
    submit(attempt, "102\n")
    assert recover_reply(attempt) == {"10", "102"}


def test_recover_reply_ignores_ambiguous_ids_in_banner(attempt: AttemptDir) -> None:
    submit(attempt, "nodes that are up:\n17\n101\n")
    assert recover_reply(attempt) == set()


def test_recover_reply_ignores_id_printed_by_failed_sbatch(attempt: AttemptDir) -> None:
    submit(attempt, "42\n", failed=True)
    assert recover_reply(attempt) == set()
    submit(attempt, "101\n")
    assert recover_reply(attempt) == {"101"}


def test_submit_reply_is_read_up_to_maximum_size(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_REPLY_BYTES", 1000)
    assert len(submit(attempt, "101\n" + "#" * 5000)) == 1000
    assert recover_reply(attempt) == {"101"}

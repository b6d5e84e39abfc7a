"""Commands: the end of one is noticed, with pidfds and without, and what sbatch printed is read by later readers."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.scheduler_errors import AccountingUnreachable, NotNow
from ffdl_slurm.commands import beside_argv
from ffdl_slurm.gateways import submission_files
from ffdl_slurm.gateways.cli_gateway import CommandLineGateway
from ffdl_slurm.gateways.command_runner import CommandStopped, CommandTimeout, ConfMissing, run_command
from ffdl_slurm.gateways.pyslurm_gateway import PyslurmGateway
from ffdl_slurm.gateways.submission_files import (
    begin_reply,
    disown_reply,
    hold_submission,
    open_replies,
    read_replies,
    recover_reply,
)

ANSWER = [sys.executable, "-c", "import sys; print('17'); print('no', file=sys.stderr); sys.exit(3)"]


@pytest.fixture(params=["pidfd", "no pidfd"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param == "no pidfd":
        monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.usefixtures("_kernel")
def test_run_command_writes_output_to_files_and_returns_exit_status(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        result = run_command(ANSWER, 60, files=(out.fileno(), err.fileno()))
    assert (result.returncode, result.stdout, result.stderr) == (3, "", "")
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("17\n", "no\n")


@pytest.mark.usefixtures("_kernel")
def test_run_command_kills_command_after_timeout(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
    pid = ""
    for timeout_s in (0.1, 1, 10, 120):  # until the command has printed its number before it was killed
        with (tmp_path / "out").open("wb") as out, pytest.raises(CommandTimeout):
            run_command(argv, timeout_s, files=(out.fileno(), out.fileno()))
        if pid := (tmp_path / "out").read_text().strip():
            break
    assert pid and not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("directory", [False, True])
def test_run_command_names_missing_configuration_at_once(tmp_path: Path, directory: bool) -> None:
    conf = tmp_path / "etc" / "slurm.conf" if directory else tmp_path / "slurm.conf"
    with pytest.raises(ConfMissing, match=f"SLURM_CONF of the daemon is '{conf}', and this file does not exist"):
        run_command(["/bin/sleep", "600"], 120, {"SLURM_CONF": str(conf)})


def test_missing_configuration_does_not_mean_that_there_is_no_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(AccountingUnreachable, match="this file does not exist"):
        CommandLineGateway(60).account_for({"17"})
    with pytest.raises(ConfMissing):
        PyslurmGateway(60).list_own_jobs()


@pytest.mark.usefixtures("_kernel")
def test_run_command_kills_command_when_its_output_is_enough(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
    reply = tmp_path / "out"
    with reply.open("wb") as out, pytest.raises(CommandStopped) as raised:
        run_command(argv, 120, files=(out.fileno(), out.fileno()), must_stop=lambda: reply.stat().st_size > 0)
    assert 0 < raised.value.within_s < 120
    assert not Path(f"/proc/{reply.read_text().strip()}").exists()


@pytest.mark.usefixtures("_kernel")
def test_run_command_returns_exit_status_of_command_that_ends_before_it_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os, sys, time; print(os.getpid(), flush=True); time.sleep(0.3); sys.exit(3)"]
    reply = tmp_path / "out"

    def await_end() -> bool:
        if pid := reply.read_text().strip():
            os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
        return bool(pid)

    with reply.open("wb") as out:
        ended = run_command(argv, 60, files=(out.fileno(), out.fileno()), must_stop=await_end)
    assert ended.returncode == 3


def test_sbatch_gets_umask_of_submitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends SLURM_UMASK, and slurmd creates the output file with it."""
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\necho "$SLURM_UMASK" > {tmp_path}/sent\necho 17\n')
    (tmp_path / "sbatch").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_UMASK", "0000")
    assert CommandLineGateway(60).submit(AttemptDir(str(tmp_path)), 0o027) == "17"
    assert (tmp_path / "sent").read_text() == "0027\n"


def test_submission_lock_is_held_by_command_and_not_by_daemon(tmp_path: Path) -> None:
    """A daemon that is stopped while it waits for sbatch holds up no other."""
    attempt = AttemptDir(str(tmp_path))
    taken = (
        "import fcntl, sys; lock = open(sys.argv[1], 'r+')\n"
        "try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('taken')"
    )
    argv = [sys.executable, "-c", taken, str(tmp_path / "submit" / "lock")]
    with hold_submission(attempt) as hold:
        assert run_command(argv, 60, hold=hold).stdout == "taken\n"
        assert run_command(argv, 60).stdout == ""
        with hold_submission(attempt), pytest.raises(NotNow), hold_submission(attempt):
            pass


def test_beside_step_command_overlaps_and_requests_no_memory_or_gres() -> None:
    argv = beside_argv("77", 2, ["/opt/python", "attach"])
    assert argv[0] == "srun"
    assert {"--jobid=77", "--relative=2", "--overlap", "--mem=0", "--gres=none"} < set(argv)
    assert argv[-2:] == ["/opt/python", "attach"]


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
    for said in ("*** welcome ***\n101\n", "102;cluster\n*** thanks ***\n"):
        assert submit(attempt, said) == said
    assert recover_reply(attempt) == {"101", "102"}


def test_submit_reply_cut_off_is_not_joined_with_next_reply(attempt: AttemptDir) -> None:
    submit(attempt, "10")
    submit(attempt, "102\n")
    assert recover_reply(attempt) == {"10", "102"}


def test_recover_reply_ignores_ambiguous_ids_in_banner_and_id_printed_by_failed_sbatch(attempt: AttemptDir) -> None:
    submit(attempt, "nodes that are up:\n17\n101\n")
    assert recover_reply(attempt) == set()
    submit(attempt, "42\n", failed=True)
    assert recover_reply(attempt) == set()
    submit(attempt, "101\n")
    assert recover_reply(attempt) == {"101"}


def test_submit_reply_is_read_up_to_maximum_size(attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission_files, "MAX_REPLY_BYTES", 1000)
    assert len(submit(attempt, "101\n" + "#" * 5000)) == 1000
    assert recover_reply(attempt) == {"101"}

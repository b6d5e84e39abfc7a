"""Helpers that cannot be started, say nothing, or say something else."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ffdl_batch.client import Client, RequestRefused, attach
from ffdl_batch.client.attach import AttachRequest, Helper, run
from ffdl_batch.domain.launch.attach_protocol import (
    ERRORS,
    EXIT,
    OUTPUT,
    READY,
    AttachPlan,
    FrameError,
    FrameReader,
    encode_frame,
)
from tests.unit.client.fake_daemon import FakeDaemon, make_job


def helper(code: str, **fields: object) -> Helper:
    """A program of Python's as the helper."""
    return Helper(AttachPlan((sys.executable, "-c", code), (1,), node="n1", **fields))  # type: ignore[arg-type]


def says(*frames: bytes) -> str:
    """A program that says these frames and waits for its end."""
    return f"import sys; sys.stdout.buffer.write({b''.join(frames)!r}); sys.stdout.flush(); sys.stdin.read()"


def test_frame_reader_decodes_frames_from_chunks_of_any_size() -> None:
    data = encode_frame("O", bytes(range(256))) + encode_frame("Z") + encode_frame("P", b"x")
    for size in (1, 2, 3, 100, len(data)):
        reader = FrameReader()
        found = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
        assert found == [("O", bytes(range(256))), ("Z", b""), ("P", b"x")]


@pytest.mark.parametrize("line", [b"\n", b"OO aa==\n", b"O a\n", b"\xff\n", b"slurmstepd: error: what\n"])
def test_frame_reader_rejects_invalid_frame(line: bytes) -> None:
    with pytest.raises(FrameError, match="is not a frame"):
        FrameReader().feed(line)


def test_helper_refuses_to_start_for_other_host_or_without_program() -> None:
    with pytest.raises(RequestRefused, match="processes of far, and this is") as refused:
        helper("", host="far")
    assert refused.value.problem.exit_code == 69
    said = r"there is no no-such-srun on .* to run a command on n1"
    with pytest.raises(RequestRefused, match=said) as refused:
        Helper(AttachPlan(("no-such-srun",), (1,), node="n1"))
    assert refused.value.problem.exit_code == 69


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import sys; sys.stderr.write('srun: error: Unable to create step for job 7: Job is down\\n'); sys.exit(1)",
            "broke off: srun: error: Unable to create step",
        ),
        ("print('Welcome to n1')", "Welcome to n1"),
    ],
)
def test_begin_quotes_output_of_step_that_does_not_start(code: str, said: str) -> None:
    with helper(code) as made, pytest.raises(RequestRefused, match=said):
        made.begin(AttachRequest(("true",)))


def test_begin_times_out_if_step_does_not_become_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "READY_S", 0.3)
    code = "import sys; sys.stderr.write('srun: retrying\\n'); sys.stderr.flush(); sys.stdin.read()"
    with helper(code) as made, pytest.raises(RequestRefused, match=r"within 0\.3 s") as refused:
        made.begin(AttachRequest(("true",)))
    assert refused.value.problem.exit_code == 75


def test_helper_removes_scheduler_variables_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CONF", "OTHER"):
        monkeypatch.setenv(name, "x")
    code = "import base64, json, os; said = json.dumps(dict(os.environ)).encode(); "
    code += "print('R', base64.b64encode(said).decode())"
    with helper(code, unset=("SLURM_",), keep=("SLURM_CONF",)) as made:
        found = made.begin(AttachRequest(("true",)))
    assert ("SLURM_JOB_ID" in found, found["SLURM_CONF"], found["OTHER"]) == (False, "x", "x")


def test_attach_run_leaves_stdin_unread_for_command_without_input(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("for the next one")
    status = json.dumps({"status": 4}).encode()
    with (
        (tmp_path / "input").open() as file,
        helper(says(encode_frame(READY, b"{}"), encode_frame(EXIT, status))) as made,
    ):
        before = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            assert run(made, AttachRequest(do="stack")) == 4
            assert os.read(0, 100) == b"for the next one"
        finally:
            os.dup2(before, 0)
            os.close(before)


def test_attach_plans_sends_learner_to_daemon(daemon: FakeDaemon) -> None:
    daemon.jobs["a"] = make_job("a")
    with Client(daemon.path, start=False) as client:
        assert client.attach_plans("a", 2) == ()
    assert daemon.requests == ["GET /api/v1/jobs/a/attach?learner=2"]


def test_attach_write_reports_full_output() -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(RequestRefused, match="cannot be written: No space"),
    ):
        attach._write(full.fileno(), b"x")


def test_attach_run_filters_text_of_stack_but_not_of_command(capfd: pytest.CaptureFixture[str]) -> None:
    text = "f\u00e4\x1b[2J\u202e\n".encode()
    frames = [*(encode_frame(OUTPUT, text[at : at + 1]) for at in range(len(text))), encode_frame(ERRORS, b"\x9b\n")]
    code = says(encode_frame(READY, b"{}"), *frames, encode_frame(EXIT, json.dumps({"status": 0}).encode()))
    with helper(code) as made:
        run(made, AttachRequest(do="stack"))
    assert capfd.readouterr() == ("f\u00e4\\x1b[2J\\u202e\n", "\ufffd\n")
    with helper(code) as made:
        run(made, AttachRequest(("true",)))
    assert capfd.readouterr().out == text.decode()

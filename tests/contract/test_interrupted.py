"""Ctrl-C at commands that follow a job or download its output: exit code 130, no traceback, and the job continues."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, until
from tests.contract.test_daemon_logs import Desk, desk
from tests.preloaded import FFDL

__all__ = ["desk"]
COMMAND = "head -c 16M /dev/urandom >$RESULT_DIR/large; echo begun; exec sleep 600"
STOPPING = f"""\
import signal
from ffdl_batch.cli.render.progress import Meter
Meter.show = lambda _, line: signal.pause() if getattr(line, "bytes", 0) > 4 << 20 else None
{FFDL[-1]}
"""
"""ffdl, with downloads that stop after 4 MiB."""


def start(desk: Desk, *words: str, program: str = FFDL[-1]) -> tuple[subprocess.Popen[str], Path, Path]:
    """A command in the background, and the files of its output and errors."""
    output, errors = (desk.base / f"{kind}-{words[0]}" for kind in ("out", "err"))
    with output.open("w") as out, errors.open("w") as err:
        argv = [*FFDL[:-1], program, *words]
        env = {**desk.site.environment(), "XDG_CACHE_HOME": str(desk.base / "cache")}
        process = preloaded.Popen(
            argv, cwd=desk.base, env=env, stdout=out, stderr=err, text=True, start_new_session=True
        )
    desk.followers.append(process)
    return process, output, errors


def interrupted(process: subprocess.Popen[str], errors: Path) -> str:
    """What it says when it is."""
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130, errors.read_text()
    said = errors.read_text()
    assert "Traceback" not in said
    return said


def test_ctrl_c_ends_logs_metrics_and_download_while_job_keeps_running(desk: Desk) -> None:
    job_id = desk.submit("long", COMMAND)
    follower, heard, told = start(desk, "logs", "--follow", job_id)
    desk.await_text(heard, "begun")
    said = interrupted(follower, told)
    assert f"detached; {job_id} continues. To follow again: ffdl logs -f {job_id}." in said
    assert heard.read_text().endswith("begun\n")

    metrics, samples, told = start(desk, "metrics", "--follow", "--usage", "--json", job_id)
    until(samples.read_text, "a sample")
    said = interrupted(metrics, told)
    assert f"detached; {job_id} continues. To follow again: ffdl metrics -f {job_id}." in said
    assert samples.read_text().endswith("}\n")

    got, kept = desk.base / "got", desk.base / "cache/ffdl/transfers"
    bringing, _, told = start(desk, "download", job_id, "--out", str(got), program=STOPPING)
    until(lambda: any(path.stat().st_size for path in kept.glob("*/sent/large")), "a part of the file")
    assert "run the same command again" in interrupted(bringing, told)
    assert not list(kept.glob("*/sent")), "what came through the daemon, and was in no directory of the person's yet"
    assert not got.exists() or not list(got.iterdir())
    assert desk.show(job_id)["state"] == "PROCESSING"

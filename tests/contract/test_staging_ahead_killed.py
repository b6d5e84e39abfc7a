"""The attempt that brings data is killed in mid-transfer: a real daemon, the local backend, a real S3 server.

The training begins with whole data or the job says why not, and nothing that was brought in part has a file's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.host.processes import all_processes
from tests.contract.daemon_rig import PLAIN, until
from tests.contract.test_data_jobs import Data, data
from tests.contract.test_staging_ahead import AHEAD, attempts
from tests.fakes.fault_proxy import Rule
from tests.staging_rig import MIB

__all__ = ["data"]
BIG = bytes(range(251)) * (3 * MIB // 251)
DIGEST = hashlib.sha256(BIG).hexdigest()
CHECK = 'sha256sum <"$DATA_DIR/big"; cat "$DATA_DIR/a"; ls -A "$DATA_DIR"'
MANIFEST = """\
name: ahead
gpus: 0
framework: {{name: custom, version: python-numpy, command: '{command}'}}
data_stores:
  - type: mount_cos
    training_data: {{container: {bucket}/set}}
    connection: {{auth_url: "{url}", user_name: anybody, password: anything}}
"""
ROLES: dict[str, Callable[[list[str]], bool]] = {
    "program": lambda words: "ffdl_batch.staging" in words,
    "node": lambda words: "node" in words and "--launch" in words,
    "head": lambda words: "head" in words and "--launch" in words,
}


@pytest.fixture(name="slow")
def made(data: Data) -> Iterator[tuple[Data, str]]:
    """A job whose first attempt is in the middle of the large file."""
    data.server.client.put_object(Bucket=data.bucket, Key="set/big", Body=BIG)
    data.proxy.rules.append(Rule("GET", "/set/big", pause_s=1.0))
    text = MANIFEST.format(command=CHECK, bucket=data.bucket, url=data.proxy.endpoint)
    result = data.submit(manifest=text + AHEAD)
    assert result["problem"] is None, result
    until(lambda: data.proxy.given[f"/{data.bucket}/set/big"] > 65536, "a part of the large file")
    until(lambda: pids(data, "program"), "the staging program")
    yield data, result["id"]


def pids(data: Data, *roles: str) -> list[int]:
    """Processes of the rig's that play one of these parts."""
    found = []
    for pid in all_processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        ours = any(str(data.site.directory) in word for word in words)
        if ours and any(ROLES[role](words) for role in roles):
            found.append(pid)
    return found


def kill(data: Data, *roles: str) -> None:
    """All of them at once, as a node that loses its power does: none sees another's end. What one of them has begun for
    a moment has its words until it runs its own, and may be over."""
    found, programs = pids(data, *roles), {*pids(data, "program")}
    assert found and programs
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
    until(lambda: not programs & {*pids(data, "program")}, "the end of who brought it")


def hurry(data: Data) -> None:
    """What is still to come comes at once."""
    for rule in data.proxy.rules:
        rule.pause_s = 0.0


def files(data: Data, job_id: str) -> dict[str, int]:
    """Of the job's data, with a file's own name: name and size."""
    (place,) = {path.parent for path in data.site.directory.rglob(f"jobs/{job_id}/attempt-1")}
    found = [path for path in (place / "data").rglob("*") if path.is_file() and not path.name.endswith(".part")]
    return {path.name: path.stat().st_size for path in found}


def require_trained(data: Data, job_id: str) -> dict[str, Any]:
    job = data.ended(job_id)
    assert job["state"] == "COMPLETED", job
    (log,) = data.site.directory.rglob(f"{job_id}/attempt-{len(job['attempts'])}/logs/learner-1/training-log.txt")
    said = log.read_text().splitlines()
    assert said[-4:] == [f"{DIGEST}  -", "from main", "a", "big"], said
    return job


@pytest.mark.full
@pytest.mark.parametrize("role", ["node", "head"])
def test_staging_attempt_is_retried_with_complete_data_after_controller_is_killed(
    slow: tuple[Data, str], role: str
) -> None:
    data, job_id = slow
    kill(data, role)
    assert "big" not in files(data, job_id), "what is not whole has no file's name"
    hurry(data)
    job = require_trained(data, job_id)
    assert attempts(job) == [("node_failure", "S106"), ("staged", "000"), ("", "000")], job


def test_staging_attempt_fails_job_with_reason_when_only_program_is_killed(slow: tuple[Data, str]) -> None:
    """As by a lack of memory, which another try would meet again."""
    data, job_id = slow
    kill(data, "program")
    job = data.ended(job_id)
    assert (job["state"], attempts(job)) == ("FAILED", [("", "S302")]), job
    assert "the staging program was killed by signal 9" in str(job), job
    assert "big" not in files(data, job_id)


def test_daemon_recovers_staging_attempt_after_everything_is_killed(slow: tuple[Data, str]) -> None:
    data, job_id = slow
    daemon = data.site.processes[-1]
    daemon.kill()
    kill(data, "program", "node", "head")
    daemon.wait()
    hurry(data)
    data.site.start(program=PLAIN)
    assert attempts(require_trained(data, job_id))[-2:] == [("staged", "000"), ("", "000")]


def test_staging_retry_fails_job_before_learner_starts_when_store_denies_access(slow: tuple[Data, str]) -> None:
    data, job_id = slow
    data.proxy.rules.insert(0, Rule("GET", "/set/big", status=403, code="AccessDenied"))
    kill(data, "program", "node", "head")
    job = data.ended(job_id)
    assert (job["state"], attempts(job)) == ("FAILED", [("node_failure", "S106"), ("", "C103")]), job
    assert "AccessDenied" in str(job)

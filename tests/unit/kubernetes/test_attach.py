"""Ways into pods: what is started, what an end means, what the mirror leaves alone."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.client.attach import AttachRequest, Helper, run
from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.launch.attach_protocol import AttachPlan
from ffdl_batch.domain.launch.limits import LogLimits
from ffdl_batch.domain.launch.pod_protocol import Frame, FrameKind, Look, decode_look, encode_look
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerUnreachable
from ffdl_batch.runtimes.launch_request import AttemptNode
from ffdl_kubernetes.attach.node_access import Reach
from ffdl_kubernetes.attach.pod_exec import NotStarted, exit_status
from ffdl_kubernetes.objects.names import INDEX
from ffdl_kubernetes.observing.attempt_mirror import Mirror
from ffdl_kubernetes.settings import KubernetesSettings
from tests.fakes.kubernetes.certificates import make_certificate, write_kubeconfig

TOKEN = "training-0a1b2c3d4-1"


class Watched:
    """What the watch has told."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self._pods = list(pods)
        self.silence: SchedulerUnreachable | None = None

    def await_sync(self, timeout_s: float) -> None:
        if self.silence is not None:
            raise self.silence

    def pods_by_token(self) -> dict[str, list[dict[str, Any]]]:
        return {TOKEN: self._pods}


def pod(name: str, index: int, phase: str = "Running", **meta: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {INDEX: str(index)}, **meta}, "status": {"phase": phase}}


def adapter(tmp_path: Path, *pods: dict[str, Any]) -> Reach:
    authority = tmp_path / "authority"
    authority.write_text("nobody is asked")
    file = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", authority, namespace="team-a", token="x")
    made = Reach()
    made._settings = KubernetesSettings(kubeconfig=str(file), request_timeout_s=7)
    made._watcher = Watched(*pods)  # type: ignore[assignment]
    return made


def place(tmp_path: Path, rank: int) -> AttemptNode:
    return AttemptNode(NativeId(TOKEN), AttemptDir(str(tmp_path)), "", rank)


def test_reach_runs_attach_program_in_running_pod_of_the_node(tmp_path: Path) -> None:
    pods = (pod("a-0", 0), pod("a-1-x", 1, "Failed"), pod("a-1-y", 1))
    found = adapter(tmp_path, *pods).beside(place(tmp_path, 1), ["python", "attach"])
    at = found.argv.index("--kubeconfig")
    assert found.argv[at:] == (
        "--kubeconfig", str(tmp_path / "config"), "--context", "fake", "--namespace", "team-a", "--pod", "a-1-y",
        "--timeout", "7", "--", "python", "attach",
    )  # fmt: skip
    assert (found.argv[1:4], found.host) == (("-I", "-m", "ffdl_kubernetes.attach"), "")


@pytest.mark.parametrize("gone", [pod("a-0", 0, "Succeeded"), pod("a-0", 0, deletionTimestamp="2026-01-01T00:00:00Z")])
def test_reach_rejects_pod_that_is_not_running(tmp_path: Path, gone: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"pod 0 of {TOKEN} does not run"):
        adapter(tmp_path, gone).beside(place(tmp_path, 0), ["python"])


def test_reach_reports_unreachable_scheduler_before_pods_are_listed(tmp_path: Path) -> None:
    reach = adapter(tmp_path)
    reach._watcher.silence = SchedulerUnreachable("Pods cannot be listed: refused")  # type: ignore[attr-defined]
    with pytest.raises(SchedulerUnreachable, match="refused"):
        reach.beside(place(tmp_path, 0), ["python"])


@pytest.mark.parametrize("attach_request", [AttachRequest(("true",)), AttachRequest(do="stack")], ids=["exec", "stack"])
def test_exec_and_stack_exit_75_while_api_server_is_away(tmp_path: Path, attach_request: AttachRequest) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nothing listens
        server = f"https://127.0.0.1:{closed.getsockname()[1]}"
        authority, _ = make_certificate(tmp_path)
        reach = adapter(tmp_path, pod("a-0", 0))
        write_kubeconfig(tmp_path / "config", server, authority, namespace="team-a", token="x")
        program = reach.beside(place(tmp_path, 0), ["attach", "--learners", "1"])
        with Helper(AttachPlan(program.argv, (1,))) as helper, pytest.raises(RequestRefused) as caught:
            run(helper, attach_request)
    assert caught.value.problem.exit_code == ExitCode.TRY_AGAIN
    assert f"the API server {server} cannot be reached: All connection attempts failed" in caught.value.problem.message


def test_exit_status_is_read_from_kubelet_status() -> None:
    causes = [{"reason": "ExitCode", "message": "137"}]
    assert exit_status({"status": "Success"}) == 0
    failure = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    assert exit_status(failure) == 137


@pytest.mark.parametrize(("status", "said"), [
    ({"status": "Failure", "reason": "InternalError", "message": "error executing command"}, "error executing"),
    ({"status": "Failure", "reason": "NonZeroExitCode"}, "NonZeroExitCode"),
    ({}, "nothing"),
])  # fmt: skip
def test_exit_status_raises_not_started_for_status_without_exit_code(status: dict[str, Any], said: str) -> None:
    with pytest.raises(NotStarted, match=said):
        exit_status(status)


def test_inspection_request_survives_round_trip_and_rejects_malformed_text() -> None:
    look = Look("0a", "stack", (1, 3))
    assert decode_look(encode_look(look)) == look
    for text in ("[]", "{}", '{"learners": ["x"]}', "x"):
        with pytest.raises(ValueError):
            decode_look(text)


def test_mirror_writes_no_attempt_file_for_answer_frame(tmp_path: Path) -> None:
    """Whoever asked reads them; the daemon leaves them alone."""
    mirror = Mirror(AttemptDir(str(tmp_path / "attempt-1")), str(tmp_path / "bell"), "training-a", 1, LogLimits())
    mirror.apply(Frame(1, 1, FrameKind.ANSWER, "final.json", 0, b"{}", 2), 1.0, 0)
    assert [path.name for path in (tmp_path / "attempt-1").rglob("*") if path.is_file()] == ["node-0.heartbeat"]


PIPE_BYTES = 65536
"""What a pipe holds (pipe(7))."""
WRITES = f"""
import asyncio
from ffdl_kubernetes.attach.owner_streams import Own

async def write():
    own = await Own.open()
    await own.write(b"x" * {PIPE_BYTES})
    await own.write(b"x" * 1000)

asyncio.run(write())
"""


def test_owner_that_reads_late_gets_all_output() -> None:
    """What is in the buffer of an event loop at its end is lost."""
    with subprocess.Popen([sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        assert process.stdout is not None
        assert len(process.stdout.read()) == PIPE_BYTES + 1000
        assert process.wait() == 0

"""The program by which an owner gets into a pod, against the tests' API server: streams, ends, refusals."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffdl_batch.domain.launch.attach_protocol import BEGIN, INPUT, REFUSED, FrameReader, encode_frame
from tests import preloaded
from tests.contract.test_fake_kubelet import Hands, sh, state_of
from tests.fakes.kubernetes.rig import cluster, eventually, node

BEGUN = encode_frame(BEGIN, json.dumps({"do": "run"}).encode())


@pytest.fixture(scope="module", params=["1.29", "1.36"])
def hands(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    """A pod `up` whose container `controller` runs, and one `over` whose has ended."""
    base = tmp_path_factory.mktemp("exec")
    with cluster(base, nodes=[node("n1")], kubelet={"sync_s": 0.05}, release=request.param) as k8s:
        made = Hands(k8s)
        made.pod("up", sh("controller", "echo up; exec sleep 600"))
        made.pod("over", sh("controller", "exit 0"), sh("main", "exec sleep 600"))
        made.await_log("up", "up", "controller")
        eventually(lambda: "terminated" in state_of(made.get("over"), "controller"), "one container has ended")
        yield made


def program(hands: Hands, pod: str, *argv: str, kubeconfig: Path | None = None) -> list[str]:
    where = ["--kubeconfig", str(kubeconfig or hands.k8s.kubeconfig), "--namespace", hands.k8s.namespace, "--pod", pod]
    return [sys.executable, "-m", "ffdl_kubernetes.attach", *where, "--timeout", "60", "--", *argv]


def run(argv: list[str], given: bytes = b"") -> tuple[int | None, bytes, bytes]:
    """Status, output, errors; the input ends when the program has."""
    with preloaded.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as made:
        assert made.stdin is not None and made.stdout is not None and made.stderr is not None
        made.stdin.write(BEGUN + given)
        made.stdin.flush()
        said, complained = made.stdout.read(), made.stderr.read()
        return made.wait(120), said, complained


def refusal(argv: list[str]) -> str:
    """What the owner is told in the helper's place."""
    code, said, complained = run(argv)
    assert code == 69, complained
    ((kind, payload),) = FrameReader().feed(said)
    assert kind == REFUSED
    return payload.decode()


def test_attach_program_passes_streams_and_exit_status(hands: Hands) -> None:
    given = encode_frame(INPUT, bytes(range(256))) * 4096
    digest = hashlib.sha256(BEGUN + given).hexdigest().encode()
    count = f"head -c {len(BEGUN + given)} | sha256sum; echo wrong >&2; exit 3"
    code, said, complained = run(program(hands, "up", "sh", "-c", count), given)
    assert (code, said[: len(digest)], complained) == (3, digest, b"wrong\n")


def test_attach_program_closes_remote_input_at_end_of_input(hands: Hands) -> None:
    """By a word of its own, or by the end of the connection where a server knows none."""
    done = preloaded.run(
        program(hands, "up", "sh", "-c", "cat >/dev/null; touch /dev/shm/ended; echo over"),
        input=BEGUN, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout == (b"" if hands.k8s.ask("GET", "version")["minor"] == "29" else b"over\n")
    look = "for i in $(seq 1200); do [ -e /dev/shm/ended ] && exit 5; sleep 0.05; done"
    assert run(program(hands, "up", "sh", "-c", look))[0] == 5


def test_attach_program_reports_why_command_cannot_start(hands: Hands) -> None:
    assert 'exec: "absent": executable file not found in $PATH' in refusal(program(hands, "up", "absent"))
    assert 'container not found ("controller")' in refusal(program(hands, "over", "true"))
    assert 'pods "none" not found' in refusal(program(hands, "none", "true"))
    nowhere = program(hands, "up", "true", kubeconfig=Path("/nowhere"))
    assert "no cluster is configured in /nowhere" in refusal(nowhere)


def test_attach_program_needs_create_permission_since_kubernetes_1_35(hands: Hands) -> None:
    """A WebSocket is a GET; a right to `get` alone let people run commands until then."""
    hands.k8s.grant("reader", [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}])
    argv = program(hands, "up", "true", kubeconfig=hands.k8s.kubeconfig_of("reader"))
    if hands.k8s.ask("GET", "version")["minor"] == "29":
        assert run(argv)[0] == 0
    else:
        assert 'User "reader" cannot create resource "pods/exec"' in refusal(argv)
